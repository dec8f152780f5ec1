"""Networks on core groups: measure nodes for `partition`, compile and time the result, balance its stages (S5)."""
