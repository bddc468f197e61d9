"""vLLM's own processes as a world of the lab."""
