"""Networks on core groups: partitions, their compiled systems, values and times (S5)."""
