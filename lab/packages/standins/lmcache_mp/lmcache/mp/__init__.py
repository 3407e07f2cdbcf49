"""MP mode."""
