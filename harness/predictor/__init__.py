"""Latencies of layers that were never measured, predicted from those that were, each with an interval."""
