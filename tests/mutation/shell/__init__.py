"""Mutants of the files that the twin does not run, played on the real engine."""
