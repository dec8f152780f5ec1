"""Latencies of all networks of a search space, from tables by choice that are made once."""
