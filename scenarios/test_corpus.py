"""Plans that a sweep or a random search has found: each once turned a promise red, or a judge had to be mended."""

from __future__ import annotations

from scenarios.lab.corpus import corpus
from scenarios.lab.family import family

globals().update(family(__name__, corpus()))
