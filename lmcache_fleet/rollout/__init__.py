"""A change carried through a fleet in waves: planned, written down, gated, and taken up again after a crash."""
