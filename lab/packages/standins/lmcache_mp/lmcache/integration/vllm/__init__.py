"""Integration with vLLM."""
