"""What is: read-only pyinfra facts, one module a tool or file format."""
