"""Rings of vLLM's, watched and damaged by who stands beside its processes."""
