"""Fuzz the four readers of foreign input: seeds, structured mutations, and the command `python -m fuzz`.

Each module named after a reader has three functions. `seeds` returns valid inputs, `mutate` changes an input along its
structure, and `read` passes it to the reader: it returns True if the reader accepts the input, and False if it raises
the documented error. Any other exception is a crash. The tests use the same functions with hypothesis.
"""
