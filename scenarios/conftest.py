"""`pytest scenarios/` in a checkout that is not installed: what pytest did not find by itself is registered here."""

from __future__ import annotations

import pytest

from scenarios import pytest_plugin


def pytest_addoption(pluginmanager: pytest.PytestPluginManager) -> None:
    if not pluginmanager.is_registered(pytest_plugin):
        pluginmanager.register(pytest_plugin, "ringtwin")
