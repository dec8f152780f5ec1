"""Partitions of a network's nodes over core groups of one chip or several (S5): plain values, no compiler."""
