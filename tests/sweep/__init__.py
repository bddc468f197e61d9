"""Every crossing once: see scenarios/lab/sweep.py."""
