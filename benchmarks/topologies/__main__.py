"""Write topologies to a folder: `python -m benchmarks.topologies FOLDER [NAME ...]`; all of them without a name."""

import argparse
from pathlib import Path

import onnx

from benchmarks.topologies import NAMES, build


def main() -> None:
    """Write NAME.onnx for every name asked for."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.topologies", description=__doc__)
    parser.add_argument("folder", type=Path, metavar="FOLDER")
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"one of: {', '.join(NAMES)}")
    parser.add_argument("--seed", type=int, default=0, help="seed of the weights")
    options = parser.parse_args()
    unknown = [name for name in options.names if name not in NAMES]
    if unknown:
        parser.error(f"no topology called {', '.join(unknown)}; choose from: {', '.join(NAMES)}")
    options.folder.mkdir(parents=True, exist_ok=True)
    for name in options.names or NAMES:
        onnx.save(build(name, options.seed), options.folder / f"{name}.onnx")


if __name__ == "__main__":
    main()
