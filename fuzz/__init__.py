"""Fuzzing of the four readers of foreign input: seeds, mutations by structure, and the command `python -m fuzz`.

Each module named after a reader has `seeds`, valid inputs made by the program itself, `mutate`, which changes an
input along its structure, and `read`, which hands it to the reader: True where it is accepted, False where it is
refused by the documented error. Whatever else `read` raises is a crash. The suite feeds the same three to hypothesis.
"""
