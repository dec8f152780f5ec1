"""Devices over SSH: servers and keys on the way, bounded connections, and the agent at their end."""
