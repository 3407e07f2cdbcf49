"""What takes the place of the parts of lmcache that need the real torch."""
