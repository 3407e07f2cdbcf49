"""What the lab's stand-ins for engines have in common; no real distribution has it."""
