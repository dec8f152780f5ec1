"""Locks on files, which host and agents take in the same way; `device_agents.file_locks` describes them."""

from device_agents.file_locks import take

__all__ = ["take"]
