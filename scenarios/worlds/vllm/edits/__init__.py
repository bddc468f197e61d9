"""vLLM with a few of its functions changed: bugs that the lab must see, and mends that must turn it green again."""
