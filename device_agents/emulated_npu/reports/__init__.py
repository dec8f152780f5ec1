"""Summaries of a run: rows by layer, bytes by class, traces, pipelines."""
