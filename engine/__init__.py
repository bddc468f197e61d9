"""A multi-process tensor-parallel inference engine. Public names are imported when they are first used."""

_NAMES = {
    "LLM": "engine.frontend.llm", "AsyncLLM": "engine.frontend.async_llm", "EngineConfig": "engine.config",
    "SamplingParams": "engine.messages", "RequestOutput": "engine.messages", "EngineDeadError": "engine.errors",
    "RequestError": "engine.errors", "EngineLauncher": "engine.frontend.client",
}
__all__ = list(_NAMES)  # noqa: PLE0605


def __getattr__(name: str):
    if name not in _NAMES:
        raise AttributeError(f"module 'engine' has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(_NAMES[name]), name)
