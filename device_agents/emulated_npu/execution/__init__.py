"""The functional machine: memories, and the values that every command computes."""
