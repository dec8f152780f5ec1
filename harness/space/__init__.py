"""Spaces: files that describe ranges of layers, and the choice of the layers to measure for a predictor."""
