"""`python -m scenarios.command`, where `ringtwin` is not on the path."""

from scenarios.command.entry import main

if __name__ == "__main__":
    main()
