"""Devices and how to reach them: the inventory, transports, and sessions with agents."""
