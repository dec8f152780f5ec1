"""Predict layers that were never measured: a roofline, corrected by trees, with intervals."""
