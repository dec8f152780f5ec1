"""Predicted times of candidates, by which the compiler chooses between them."""
