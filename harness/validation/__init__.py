"""Whole networks and true layer latencies measured beside their estimates."""
