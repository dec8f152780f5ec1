"""How far a prediction may be off: coverage, intervals, and errors that the layers of a network share."""
