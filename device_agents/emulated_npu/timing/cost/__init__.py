"""The cost of a command: cycles of each unit, bytes of each memory."""
