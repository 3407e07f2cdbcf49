"""Preflight: what stands in the way of a playbook on a host, judged by checks that are pure functions over data."""

# What hosts that it refused failed at.
PREFLIGHT = "preflight"
