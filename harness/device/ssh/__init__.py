"""Devices over SSH: servers and keys on the way, bounded connections, and the agent at their end.

paramiko loads slowly: import these modules only where a device is reached over SSH.
"""
