"""Sources and generators of the packages and repositories that the lab serves."""
