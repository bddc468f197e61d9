"""Messages between vLLM's processes as they travel: whole ones out of a stream of bytes, and what they say."""
