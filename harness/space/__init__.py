"""Spaces of layers: which of their layers to measure so that few measurements serve all of them."""
