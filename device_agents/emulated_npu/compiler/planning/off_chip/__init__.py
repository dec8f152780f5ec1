"""Places of values, weights and constants in the last-level cache and in DDR."""
