"""python -m tests.mutation: how many planted bugs turn a promise red."""

from tests.mutation.command import main

if __name__ == "__main__":
    main()
