"""The roofline of a device with tiles and waves: its fit, the search for its tiling, and its feature matrix."""
