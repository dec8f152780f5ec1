"""A search space: one ONNX super-network, in which some nodes choose one of several branches.

A node `Sum` whose name begins with `choice:` is a position; each of its inputs is a choice. The rest of its name is the
name of the position, and its `doc_string` may list the names of the choices, separated by commas. A candidate is one
number for each position. Its network has the chosen branch in place of the `Sum`, and no node that only others need.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import itertools
import math
import operator
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from onnx import ModelProto

from harness.architecture_search.super_network import candidate_model, choice_names, is_choice, position_name
from harness.arguments import checked
from harness.errors import InvalidNetwork, UsageError
from harness.network.keyed_network import KeyedLayer
from harness.network.layers import Layer
from harness.network.model_references import Model, ModelReference, load_network, model_reference
from harness.network.network import Network, Node, resolved
from harness.text import printable

MOST_CHOICES = 256
"""A choice is one byte of a candidate."""
MOST_POSITIONS = 1000


@dataclass(frozen=True)
class Position:
    """A position and the names of its choices."""

    name: str
    choices: tuple[str, ...]


@dataclass(frozen=True)
class SearchSpace:
    """A super-network and its positions, in topological order; `read` makes one."""

    name: str
    positions: tuple[Position, ...]
    network: Network = field(repr=False)
    reference: ModelReference = field(repr=False)

    @classmethod
    @checked()
    def read(cls, model: Model, dims: Mapping[str, int] | None = None, batch: int | None = None) -> SearchSpace:
        """Read a super-network from a file or from memory; raises the errors of `load_network`, and InvalidNetwork."""
        reference = model_reference(model)
        network = load_network(reference, dims, batch)
        _check(network)
        positions = tuple(
            Position(position_name(node.proto), choice_names(node.proto))
            for node in network.nodes
            if is_choice(node.proto)
        )
        return cls(network.name, positions, network, reference)

    @property
    def sizes(self) -> tuple[int, ...]:
        """The number of choices at each position."""
        return tuple(len(position.choices) for position in self.positions)

    @property
    def candidates(self) -> int:
        """The number of candidates."""
        return math.prod(self.sizes)

    def network_of(self, candidate: Sequence[int]) -> Network:
        """Return the network of a candidate, ready to be cut into layers; its nodes keep their names."""
        chosen = dict(zip(self._choices, self.checked(candidate), strict=True))
        alias = {node.outputs[0]: node.inputs[chosen[index]] for index, node in self._choices.items()}
        outputs = tuple(dict.fromkeys(resolved(name, alias) for name in self.network.outputs))
        needed, kept = set(outputs), list[Node]()
        for node in reversed(self._ordered):
            if not needed.isdisjoint(node.outputs):
                kept.append(replace(node, inputs=tuple(resolved(name, alias) for name in node.inputs)))
                needed.update(kept[-1].inputs)
        if not kept:
            raise InvalidNetwork(f"Candidate {list(candidate)} of {self.name} has no operator")
        nodes = tuple(replace(node, index=index) for index, node in enumerate(reversed(kept)))
        digest = hashlib.sha256(f"{self.network.sha256} {list(candidate)}".encode()).hexdigest()
        return replace(self.network, nodes=nodes, outputs=outputs, sha256=digest)

    def model(self, candidate: Sequence[int]) -> ModelProto:
        """Return the network of a candidate as an ONNX model, to save, profile or validate it."""
        return candidate_model(self.reference, self.checked(candidate))

    def checked(self, candidate: Sequence[int]) -> tuple[int, ...]:
        """Return a candidate as numbers; raises UsageError unless it has one valid choice for each position."""
        with contextlib.suppress(TypeError, ValueError):  # not a row of whole numbers, or of another length
            found = tuple(operator.index(choice) for choice in candidate)
            if all(0 <= at < size for at, size in zip(found, self.sizes, strict=True)):
                return found
        step = f"Give one choice for each of {len(self.sizes)} positions, from 0 to below {list(self.sizes)}"
        raise UsageError(f"{printable(repr(candidate), 80)} is not a candidate of {self.name}", next_step=step)

    @functools.cached_property
    def position_of(self) -> Mapping[str, int]:
        """The position of each node by its name: the first choice that depends on it, and the last for all others."""
        order = {index: at for at, index in enumerate(self._choices)}
        found: dict[int, int] = {}
        for node in reversed(self.network.nodes):
            readers = [reader.index for name in node.results for reader in self.network.readers(name)]
            found[node.index] = min((order.get(at, found[at]) for at in readers), default=len(order))
        return {node.name: min(found[node.index], len(order) - 1) for node in self.network.nodes}

    def positions_of(self, layers: Iterable[KeyedLayer | Layer]) -> Iterator[int]:
        """Yield the position of each layer of a network, in its order: a layer's own, or a later one before it."""
        return itertools.accumulate((self.position_of[layer.name] for layer in layers), max)

    @functools.cached_property
    def _choices(self) -> Mapping[int, Node]:
        return {node.index: node for node in self.network.nodes if is_choice(node.proto)}

    @functools.cached_property
    def _ordered(self) -> tuple[Node, ...]:
        """All nodes but the choices, by position."""
        nodes = (node for node in self.network.nodes if node.index not in self._choices)
        return tuple(sorted(nodes, key=lambda node: (self.position_of[node.name], node.index)))


def _check(network: Network) -> None:
    choices = [node for node in network.nodes if is_choice(node.proto)]
    names = [position_name(node.proto) for node in choices]
    if not choices:
        step = "Join the branches of each position by a node Sum with the name choice:POSITION"
        raise InvalidNetwork(f"{network.name} is not a super-network", why="No node chooses a branch", next_step=step)
    if len(choices) > MOST_POSITIONS:
        raise InvalidNetwork(f"{network.name} has more than {MOST_POSITIONS} positions")
    if len(set(names)) < len(names):
        raise InvalidNetwork(f"Two positions of {network.name} have one name", next_step="Give each a different name")
    if network.unmeasured:
        raise InvalidNetwork(f"{network.name} has nodes that are not measured: {network.unmeasured[0].name}")
    for node in choices:
        shown = position_name(node.proto)[:80]
        kinds = {network.types[name] for name in node.inputs}
        if len(kinds) > 1 or any(name in network.constants for name in node.inputs):
            why = f"They are {', '.join(sorted(map(str, kinds)))}"[:200]
            step = "Give all choices of a position one type and shape; define a separate space for each width"
            raise InvalidNetwork(f"The choices of position {shown!r} differ in type", why=why, next_step=step)
        if len(node.inputs) > MOST_CHOICES:
            raise InvalidNetwork(f"Position {shown!r} has more than {MOST_CHOICES} choices")
        if len(choice_names(node.proto)) != len(node.inputs):
            step = "List one name for each input in the doc_string of the node, separated by commas"
            raise InvalidNetwork(f"The names of the choices of position {shown!r} do not fit", next_step=step)
