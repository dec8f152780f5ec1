"""Measure whole networks, and compare them and true layer latencies with their estimates."""
