"""From measurements to layer latencies: the overhead, the estimators, and the solvers they share."""
