"""Integration with SGLang."""
