"""Two requests with a long common prefix (stand-in)."""
