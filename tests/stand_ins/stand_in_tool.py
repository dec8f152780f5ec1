"""A stand-in for a vendor's benchmark: reads an ONNX file, prints latencies from a formula, misbehaves on request.

It is a program of its own and imports nothing of the project: `python -I -S stand_in_tool.py --graph=FILE …`.
The latency is `c + a * input + b * output + w * weights`, in seconds and bytes, weights of more than 1,024
elements alone; a file whose weights are missing is refused. A call is short: what few calls need is imported there,
`argparse` and `json` would take three times as long as the rest, and annotations are not evaluated.
"""

from __future__ import annotations

import math
import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

LARGE = 1024
VERSION = "stand-in 1.4.2"
_FLOAT = 1


class Options:
    """The options of a call, each written as --NAME=VALUE or --NAME for a switch; raises AttributeError for others."""

    version = json = False
    graph = ""
    num_runs = 1
    formula = "1e-10,2e-10,1e-4,1e-9"
    noise = 0.0
    export = ""
    """A file for the latencies of all runs as JSON; `json` prints them."""
    keep = ""
    """Another name for the model, under which it stays."""
    counter = ""
    """A file that counts calls."""
    pids = ""
    """A file for the process ids of the tool and its child."""
    misbehave = ""
    at = 0
    """Misbehaves at that call alone, counted from 1."""

    def __init__(self, words: list[str]) -> None:
        for word in words:
            name, has_value, value = word.removeprefix("--").partition("=")
            setattr(self, name, type(getattr(self, name))(value if has_value else True))


def fields(message: memoryview) -> Iterator[tuple[int, Any]]:
    """Number and content of each field of a protobuf message."""
    at = 0
    while at < len(message):
        key, at = varint(message, at)
        if key & 7 == 0:
            value, at = varint(message, at)
            yield key >> 3, value
        else:
            size, at = varint(message, at) if key & 7 == 2 else (4 if key & 7 == 5 else 8, at)
            yield key >> 3, message[at : at + size]
            at += size


def varint(message: memoryview, at: int) -> tuple[int, int]:
    """A number of variable length, and the place behind it."""
    value = shift = 0
    while True:
        byte = message[at]
        value |= (byte & 127) << shift
        at, shift = at + 1, shift + 7
        if byte < 128:
            return value, at


def inside(message: memoryview, *path: int) -> Iterator[Any]:
    """All values at the end of a path of field numbers."""
    for number, value in fields(message):
        if number == path[0]:
            if len(path) == 1:
                yield value
            else:
                yield from inside(value, *path[1:])


def tensor_bytes(value: memoryview) -> int:
    """Size of a graph's input or output of 32-bit floats."""
    return 4 * math.prod(int(size) for size in inside(value, 2, 1, 2, 1, 1))


def weight_bytes(graph: memoryview) -> int:
    """Size of the large weights; ends the program where one of them has no values in the file."""
    total = 0
    for tensor in inside(graph, 5):
        count = math.prod(int(size) for size in inside(tensor, 1))
        held = sum(len(value) for value in inside(tensor, 9))
        if list(inside(tensor, 2)) == [_FLOAT]:
            if count > LARGE and held != 4 * count:
                raise SystemExit(f"a weight of {count} elements has {held} bytes in the file")
            total += held if count > LARGE else 0
    return total


def latency_s(content: bytes, a: float, b: float, c: float, w: float) -> float:
    """The formula."""
    (graph,) = inside(memoryview(content), 7)
    made = {name for tensor in inside(graph, 5) for name in map(bytes, inside(tensor, 8))}
    read = sum(tensor_bytes(one) for one in inside(graph, 11) if bytes(next(inside(one, 1))) not in made)
    written = sum(tensor_bytes(one) for one in inside(graph, 12))
    return c + a * read + b * written + w * weight_bytes(graph)


def calls_so_far(path: str) -> int:
    """Counts the calls in a file, this one included."""
    with open(path, "a") as lines:
        lines.write(".")
        return lines.tell()


def runs_of(base_s: float, options: Options, seed: int) -> list[float]:
    """The latency of each run in microseconds, the same for the same file."""
    if not options.noise:
        return [1e6 * base_s] * options.num_runs
    import random

    noise = random.Random(seed)
    return [1e6 * base_s * noise.lognormvariate(0.0, options.noise) for _ in range(options.num_runs)]


def write(path: str, text: str) -> None:
    """Writes a file."""
    with open(path, "w") as content:
        content.write(text)


def main() -> None:
    """Tells latencies, or whatever was asked for instead."""
    options = Options(sys.argv[1:])
    if options.version:
        print(VERSION)
        return
    if options.keep:
        os.link(options.graph, options.keep)
    with open(options.graph, "rb") as graph:
        content = graph.read()
    base_s = latency_s(content, *map(float, options.formula.split(",")))
    runs_us = runs_of(base_s, options, len(content))
    call = calls_so_far(options.counter) if options.counter else 0
    if options.misbehave and options.at in (0, call):
        misbehave(options, runs_us)
    elif options.export or options.json:
        runs = ", ".join(f'{{"index": {at}, "us": {one!r}}}' for at, one in enumerate(runs_us))
        text = f'{{"model": "probe", "runs": [{runs}]}}'
        if options.export:
            write(options.export, text)
        else:
            print(text)
    else:
        report(f"{sum(runs_us) / len(runs_us):.6f}")


def report(figure: str) -> None:
    """Print the two lines with averages, and text around them."""
    print("Running benchmark")
    print(f"Timings in us: Init: 12.5, Inference (avg): {figure}")
    print("a warning that nobody reads", file=sys.stderr)


def misbehave(options: Options, runs_us: list[float]) -> None:
    """What tools do when they should not."""
    kind, figure = options.misbehave, f"{runs_us[0]:.6f}"
    latencies = [{"us": one} for one in runs_us]
    documents = {
        "short list": {"runs": latencies[1:]},
        "hole": {"runs": [*latencies[1:], {"ms": 1}]},
        "text": {"runs": [{"us": figure}] * len(latencies)},
        "nan in json": {"runs": [{"us": math.nan}] * len(latencies)},
        "zero in json": {"runs": [*latencies[1:], {"us": 0}]},
        "no list": {"runs": {"us": 1.0}},
    }
    if kind in ("nothing", "exit"):
        print("\x1b[31mdelegate not supported\x1b[0m", file=sys.stderr)
        sys.exit(3 if kind == "exit" else 0)
    elif kind == "crash":
        print("about to crash", flush=True)
        os.abort()
    elif kind == "twice":
        report(figure)
        report(figure)
    elif kind == "other unit":
        print(f"Timings in ms: Init: 0.0, Inference (avg): {runs_us[0] / 1e3:.6f}")
    elif kind in documents:
        import json

        print(json.dumps(documents[kind]))
    elif kind == "no json":
        print("latency: about a millisecond")
    elif kind == "key twice":
        print('{"runs": [{"us": 1, "us": 2}]}')
    elif kind == "nested":
        print("[" * 100_000)
    elif kind == "link":
        os.symlink(options.graph, options.export)
    elif kind == "pipe":
        os.mkfifo(options.export)
    elif kind == "folder":
        os.mkdir(options.export)
    elif kind == "huge file":
        write(options.export, " " * (5 << 20))
    elif kind == "endless":
        while True:
            print("still running " * 1000)
    elif kind in ("hang", "family"):  # the child of a family outlives its parent and holds the parent's pipes
        import subprocess

        child = subprocess.Popen([sys.executable, "-I", "-S", "-c", "import time; time.sleep(600)"])
        write(options.pids, f"{os.getpid()} {child.pid}")
        report(figure)
        sys.stdout.flush()
        if kind == "hang":
            child.wait()
    else:
        report(kind)  # a figure that is none


if __name__ == "__main__":
    main()
