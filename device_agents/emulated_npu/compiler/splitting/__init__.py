"""Stage 3: the parts of a graph that core groups and cores run. Entry: `division.divide`."""
