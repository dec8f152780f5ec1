"""Stage 3: carry out an assignment of layers to core groups, and slice layers over cores. Entry: `division.divide`."""
