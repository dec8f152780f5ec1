"""Choose which layers of a space to measure, so that few measurements predict all of its layers."""
