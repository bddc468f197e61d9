"""What the client of a play does. Public names are imported when they are first used."""

_NAMES = ("Command", "Driver", "Workload", "recorded")
__all__ = list(_NAMES)  # noqa: PLE0605


def __getattr__(name: str) -> object:
    if name.startswith("_"):
        raise AttributeError(f"module 'scenarios.workloads' has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module("scenarios.workloads.workload"), name)
