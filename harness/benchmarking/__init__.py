"""Whole networks measured without a table: latency percentiles, throughput, load time, memory and power."""
