"""The nodes of a network over the core groups of a chip or several (S5): plain values, no compiler."""
