"""What released vLLM does not keep of what it promises, as far as the lab has found out, and how it was confirmed."""
