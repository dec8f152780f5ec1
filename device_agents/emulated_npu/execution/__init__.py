"""The functional machine: memories, and the values that commands compute."""
