"""Time a network on machines that differ in a few parameters, and find the knee of the curve."""
