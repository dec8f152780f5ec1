"""Operators over the spatial axes of feature maps: convolutions, pooling, padding and resampling."""
