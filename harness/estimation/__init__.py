"""Estimate whole networks from a table."""
