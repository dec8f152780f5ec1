"""Fuzz the readers of foreign input: seeds, structured mutations, and the command `python -m fuzz`.

Each module named after a reader has three functions. `seeds` returns valid inputs, `mutate` changes an input along its
structure, and `read` passes it to the reader and uses what comes of it. `read` returns what became of the input; any
exception is a crash, since documented errors are among the outcomes. The tests use the same functions with hypothesis.
"""
