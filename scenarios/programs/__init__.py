"""Processes of real plays that use the engine as other programs do."""
