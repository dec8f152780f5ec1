"""Accuracy of estimates: docs/accuracy.md."""
