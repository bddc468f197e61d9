"""The promises and their judges. `from scenarios.guarantees import ends_once` resolves when it is asked for."""


def __getattr__(name: str) -> object:
    if name.startswith("_"):
        raise AttributeError(name)
    from scenarios.guarantees.registry import guarantee

    try:
        return guarantee(name)
    except KeyError as error:
        raise AttributeError(str(error)) from None
