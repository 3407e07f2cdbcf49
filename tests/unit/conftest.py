"""Settings of all unit tests."""

from hypothesis import settings

# On a machine with much else to do an example may take any time; what is slow for itself shows in the test's duration.
settings.register_profile("patient", deadline=None)
settings.load_profile("patient")
