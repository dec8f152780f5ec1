"""Slow-downs: a watch campaign after each profile, and nights compared with earlier nights."""
