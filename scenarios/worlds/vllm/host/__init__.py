"""What runs in vLLM's own interpreter beside it: a process that has imported it, and the callers that it forks."""
