"""Programs of findings of several engines of one client."""
