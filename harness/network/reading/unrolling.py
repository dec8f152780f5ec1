"""Control flow of known course: a branch in place of its If, iterations in place of their Loop or Scan."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from onnx import GraphProto, NodeProto

from harness.errors import UnsupportedNetwork
from harness.network.network import UNROLLED, Node
from harness.network.reading.control_flow import (
    SEPARATOR,
    Repetition,
    captured,
    contradiction,
    loop_of,
    renamed,
    scan_of,
    stacking,
)
from harness.network.reading.known_tensors import KnownTensors, constant_of

MAX_UNROLLED = 20_000
"""Most nodes of the iterations of all loops."""
_SCAN_WITHOUT_BATCH = 9
"""Operator set from which a Scan has neither batch nor lengths."""


@dataclass(frozen=True)
class Unrolling:
    """Replaces control flow by nodes, which it gives to `visit`; `leave_out` gets what depends on the data."""

    known: KnownTensors
    visit: Callable[[NodeProto], None]
    leave_out: Callable[[Node], None]

    def replace(self, node: Node) -> None:
        """Replace an If of known condition by its branch, a Loop or Scan of known length by its iterations.

        Over constants, both become their results.
        """
        known = self.known
        condition = known.number(node.inputs[0]) if node.op == "If" else None
        if condition is not None:
            chosen = "then_branch" if condition else "else_branch"
            branch = next(item.g for item in node.proto.attribute if item.name == chosen)
            known.set_free(node, "constant")
            known.name_results(node.outputs, self._visit_graph(renamed(branch, node.name, results=node.outputs)))
            return
        outside = captured(node.proto)
        read = [known.own(name) for name in (*node.proto.input, *outside) if name]
        if node.op != "If" and all(name in known.constants for name in read):
            results = known.values(node, outside)
            if results is not None:
                known.keep(node, results)
                return
        if node.op == "Loop":
            self._unroll(node, loop_of(node.proto, node.inputs))
        elif node.op == "Scan" and self.known.opsets[""] >= _SCAN_WITHOUT_BATCH:
            self._unroll(node, self._scan(node))
        else:
            self.leave_out(node)

    def _scan(self, node: Node) -> Repetition:
        known = self.known
        try:
            shapes = [known.types[name].shape for name in node.inputs]
            found, steps = scan_of(node.proto, node.inputs, shapes, node.name)
        except (KeyError, IndexError, ValueError) as error:
            raise contradiction(node) from error
        known.aliases.update((f"{node.name}{SEPARATOR}scanned{at}", name) for at, name in enumerate(node.inputs))
        known.set_constant(found.times, constant_of(np.array(steps)))
        known.set_constant(f"{node.name}{SEPARATOR}backwards", constant_of(np.arange(steps)[::-1].copy()))
        return found

    def _unroll(self, node: Node, loop: Repetition) -> None:
        """Replace a loop by its iterations, or leave it out if the inputs decide how many there are."""
        known, body, carried = self.known, loop.body, list(loop.carried)
        if len(body.input) != len(carried) + 2 or len(body.output) != len(carried) + 1 + len(loop.stacks):
            raise contradiction(node)
        last = known.number(loop.times) if loop.times else math.inf
        goes_on = known.number(loop.going) if loop.going else 1
        rows: list[Sequence[str]] = []
        while last is not None and goes_on and len(rows) < last:
            self._count(node, 1 + len(body.node))
            iteration = renamed(body, f"{node.name}{SEPARATOR}{len(rows)}", weights=node.name)
            number, condition, *states = iteration.input
            known.set_number(number, len(rows))
            known.set_number(condition, True)
            known.aliases.update((state.name, name) for state, name in zip(states, carried, strict=True))
            again, *results = self._visit_graph(iteration)
            goes_on, carried = known.number(again), results[: len(carried)]
            rows.append(results[len(carried) :])
        if last is None or (goes_on is None and len(rows) < last):
            self.leave_out(node)
            return
        known.set_free(node, UNROLLED)
        known.name_results(node.outputs, carried)
        self._stack(node, node.outputs[len(carried) :], rows, loop.stacks)

    def _count(self, node: Node, nodes: int) -> None:
        """Count the nodes of an iteration; raise UnsupportedNetwork for too many of them."""
        self.known.unrolled += nodes
        if self.known.unrolled > MAX_UNROLLED:
            why = f"The iterations of all loops have more than {MAX_UNROLLED:,} nodes"
            raise UnsupportedNetwork(f"Node {node.name[:80]!r} ({node.op}) cannot be measured", why=why)

    def _stack(
        self, node: Node, outputs: Sequence[str], rows: Sequence[Sequence[str]], stacks: Sequence[tuple[int, bool]]
    ) -> None:
        """Join what each iteration of a loop adds to its last outputs."""
        wanted = [(at, name) for at, name in enumerate(outputs) if name in self.known.read]
        if not wanted:
            return
        if not rows:
            why = "The loop runs zero times, so one of its results is empty"
            raise UnsupportedNetwork(f"Node {node.name[:80]!r} ({node.op}) cannot be measured", why=why)
        for at, name in wanted:
            axis, is_turned = stacks[at]
            axes = f"{node.name}{SEPARATOR}axis{axis}"
            self.known.set_constant(axes, constant_of(np.array([axis])))
            parts = [row[at] for row in rows]
            for proto in stacking(parts[::-1] if is_turned else parts, name, axes, axis, self.known.opsets[""]):
                self.visit(proto)

    def _visit_graph(self, graph: GraphProto) -> list[str]:
        """Visit the nodes of a branch or body, and return its results."""
        self.known.enter(graph)
        for inner in graph.node:
            self.visit(inner)
        return [self.known.own(value.name) for value in graph.output]
