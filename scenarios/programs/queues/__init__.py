"""Programs that have a `MessageQueue` of their own, its ends in one process."""
