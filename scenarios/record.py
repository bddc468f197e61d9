"""Rebuilds the recorded workloads: `python -m scenarios.record`. See `scenarios.workloads.record`."""

if __name__ == "__main__":
    from scenarios.workloads.record import main

    main()
