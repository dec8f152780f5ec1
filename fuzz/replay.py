"""`python -m fuzz.replay TARGET FILE`: read one input as the program does, and print what became of it.

An input that crashes a library ends the fuzzing process, but not the program where it isolates the reader.
"""

import sys
import tempfile
from pathlib import Path

from fuzz.target import target


def main(words: list[str]) -> None:
    """Print the outcome of one input."""
    name, path = words[1], Path(words[2])
    chosen = target(name)
    with tempfile.TemporaryDirectory() as folder:
        outcome = chosen.isolated(path) if chosen.isolated else chosen.read(path.read_bytes(), Path(folder))
    print(outcome.name)


if __name__ == "__main__":
    main(sys.argv)
