"""Back to the last release, or to the one named by `--data rollback_to=RELEASE`: one restart, proved on line."""

from operations.rollback import roll_back

roll_back()
