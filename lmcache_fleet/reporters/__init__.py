"""Results, told to people: tables and colour on a terminal, plain lines when piped."""
