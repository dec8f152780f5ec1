"""Operators and arithmetic that files spell out in several nodes."""
