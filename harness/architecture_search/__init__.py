"""Estimate every network of a search space from lookup tables per choice, which are built once."""
