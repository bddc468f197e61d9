"""python -m tests.sweep: every fault at every crossing, in the twin."""

from tests.sweep.command import main

if __name__ == "__main__":
    main()
