"""Inventory, transports, agent sessions, leases."""
