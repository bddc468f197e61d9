"""Where the processes of real plays come from."""
