"""Vendor tools: a command line program that runs a model and prints its latency."""
