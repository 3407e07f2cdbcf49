"""Bundles: all that a playbook fetches, in one directory, for a site without a network."""
