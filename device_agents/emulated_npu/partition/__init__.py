"""Decide which nodes run on which core group of one chip or several (S5): plain values, no compiler."""
