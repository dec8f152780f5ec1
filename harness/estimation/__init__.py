"""Whole networks from a table, and their validation on the device."""
