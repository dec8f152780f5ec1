"""Overhead regression and layer latencies."""
