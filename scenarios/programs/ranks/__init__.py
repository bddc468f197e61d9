"""Programs whose ranks find each other and compute together, without an engine."""
