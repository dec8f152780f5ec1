"""Predicted times of candidates, for the choices of stages 2 and 3."""
