"""Machines that differ in a few parameters: which values to try, the machines with them, and where a curve bends."""
