"""Examples of what exporters write and runtimes fuse, in one network that a device reveals and never measures.

The networks of a campaign show only a part of what a runtime fuses. If none has a Pad before a convolution, no rule
says that it is fused, and an unknown network would be cut there. The examples have operators before and after
convolutions of each kind, and around matrix products. Each is between operators that nothing is fused with.
"""

from __future__ import annotations

import functools
import itertools
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from onnx import TensorProto, helper

from harness.measure.fusion.product_examples import add_products
from harness.measure.fusion.quantised_examples import add_quantised
from harness.network.fusion.fusion_patterns import of_any_kind, parse_pattern, pattern_of
from harness.network.fusion.fusion_rules import MOVED_TRANSPOSES, FusionRule
from harness.network.network import Network
from harness.network.zoo.network_parts import EVERY_GELU, NetworkParts

OPSETS = 20, 17
"""Of the examples: the first with Gelu as one operator, and one for runtimes that do not read it."""
_PAD = "Pad(x0);"
_EDGE = 6
_SOURCE_CHANNELS = 4
_CONVOLUTIONS = (((32, 1), (32, 32), (64, 4)), ((24, 1), (24, 24), (32, 4)), ((21, 1), (21, 21), (12, 4)))
"""Channels and groups: dense, depthwise and grouped, with channels that fill vectors of 16, of 8, or none."""
ALL_ALIGNMENTS = len(_CONVOLUTIONS)
_ACTIVATIONS = ("Relu", "Relu6", "LeakyRelu", "Sigmoid", "Tanh", "HardSigmoid", "HardSwish", "GatedHardSwish", "Swish")
_BEHIND_SCALES = ("Relu", "Relu6", "HardSwish", "GatedHardSwish", "Swish")
_SCALES = (("scale",), ("shift",), ("scale", "shift"), ("BatchNormalization",))
_BEHIND = (
    *((one,) for one in (*_ACTIVATIONS, *EVERY_GELU)),
    *_SCALES,
    *((*scale, one) for scale, one in itertools.product(_SCALES, _BEHIND_SCALES)),
    *((*scale, "residual", *last) for scale, last in itertools.product(((), ("BatchNormalization",)), ((), ("Relu",)))),
    ("Relu", "residual"),
    ("BatchNormalization", "scale", "shift"),
    ("BatchNormalization", "scale", "shift", "Relu"),
)
_ON_MAPS = (
    ("BatchNormalization",),
    ("BatchNormalization", "Relu"),
    ("BatchNormalization", "scale", "shift"),
    ("BatchNormalization", "scale", "shift", "Relu"),
    ("scale", "shift"),
    ("scale", "shift", "Relu"),
    ("residual", "Relu"),
)
"""Operators that read maps which others read as well, as in networks that normalise before convolutions."""
_PADDED = ((), ("Relu",), ("scale", "shift"), ("scale", "shift", "Relu6"), ("scale", "Relu6"), ("scale",))


_CANCELLING = ("transposed.last", "transposed.first")
"""Transposes to channels last and back, with an operator between them that computes the same in any layout."""


def example_rules(network: Network, groups: Sequence[frozenset[int]], source: str) -> tuple[FusionRule, ...]:
    """Return the rules that the reported groups of the network of examples show.

    What holds for convolutions of all kinds and alignments is one rule, with `Conv` for all of them. If the Transposes
    of an example are no longer separate operators, the runtime moves Transposes.
    """
    group_of = {index: group for group in groups for index in group}
    seen: dict[str, dict[str, bool]] = defaultdict(dict)
    examples = _examples(network)
    for nodes in examples:
        pattern = _pattern(network, nodes)
        seen[of_any_kind(pattern)][pattern] = group_of[max(nodes)] == nodes
    for inner in sorted({group_of[index] for nodes in examples for index in nodes} - set(examples), key=min):
        if len(inner) > 1 and any(inner < nodes for nodes in examples):
            pattern = _pattern(network, inner)
            seen[of_any_kind(pattern)].setdefault(pattern, True)
    rules = []
    for general, fused in seen.items():
        if all(fused.values()):
            rules.append(FusionRule(general, len(fused), len(fused), source))
        else:
            rules += [FusionRule(pattern, 1, 1, source) for pattern, holds in fused.items() if holds]
    if all(all(fused.values()) for general, fused in seen.items() if general.startswith(f"{_PAD}Conv")):
        rules += _behind_a_pad(rules)
    transposes = {node.index for node in network.nodes if node.name in _CANCELLING}
    if not any(group <= transposes for group in groups):
        rules.append(FusionRule(MOVED_TRANSPOSES, 1, 1, source))
    return tuple(rules)


def _behind_a_pad(rules: Sequence[FusionRule]) -> list[FusionRule]:
    """Return the rules of convolutions with a Pad in front, where all padded examples show that it is fused."""
    known = {rule.pattern for rule in rules}
    found = []
    for rule in rules:
        first, *others = parse_pattern(rule.pattern)
        if first.op.startswith("Conv"):
            parts = [f"{_PAD}{first.op}(0)"]
            for node in others:
                reads = (read if read.startswith("x") else str(int(read) + 1) for read in node.reads)
                parts.append(f"{node.op}({','.join(reads)})")
            found.append(replace(rule, pattern=";".join(parts)))
    return [rule for rule in found if rule.pattern not in known]


def _pattern(network: Network, nodes: frozenset[int]) -> str:
    return pattern_of(network, [network.nodes[index] for index in sorted(nodes)])


def _examples(network: Network) -> list[frozenset[int]]:
    """Return the nodes of each example, of those with several."""
    found: dict[str, set[int]] = defaultdict(set)
    for node in network.nodes:
        example, _, place = node.name.partition(":")
        if place:
            found[example].add(node.index)
    return [frozenset(nodes) for nodes in found.values() if len(nodes) > 1]


@functools.cache
def fusion_examples(alignments: int = ALL_ALIGNMENTS, opset: int = OPSETS[0]) -> Network:
    """Return the network of examples, with so many alignments of channels; its weights have types and no values."""
    parts = NetworkParts(opset=opset)
    for number, (channels, groups) in enumerate(itertools.chain(*_CONVOLUTIONS[:alignments])):
        source, other = _map(parts, f"{number}", channels), _map(parts, f"{number}.other", channels)
        for at, behind in enumerate(_BEHIND):
            if all(map(parts.can, behind)):
                _convolved(parts, f"{number}.{at}", (source, other), (channels, groups), behind)
        for at, behind in enumerate(_PADDED):
            name = f"{number}.padded{at}"
            pads = parts.numbers(f"{name}.pads", (0, 0, 1, 1, 0, 0, 1, 1))
            padded = parts.node("Pad", f"{name}:pad", [source, pads])
            _convolved(parts, name, (padded, other), (channels, groups), behind, is_padded=True)
        pads = parts.numbers(f"{number}.pads", (0, 0, 1, 1, 0, 0, 1, 1))
        padded = parts.node("Pad", f"{number}.pooled:pad", [source, pads])
        pooled = parts.node("MaxPool", f"{number}.pooled:pool", [padded], kernel_shape=[3, 3], strides=[1, 1])
        _read(parts, f"{number}.pooled", pooled, channels)
        if groups == 1:
            _on_maps(parts, f"{number}", (source, other), channels)
    add_products(parts)
    _transposed(parts)
    _expanded(parts)
    if alignments == ALL_ALIGNMENTS:
        _signed_pair(parts)
        add_quantised(parts, list(itertools.chain(*_CONVOLUTIONS)))
    return parts.network("examples of fusion")


def _map(parts: NetworkParts, name: str, channels: int) -> str:
    """Add a convolution with an activation, into which no operator after it is fused."""
    source = parts.input(f"{name}.input", (1, _SOURCE_CHANNELS, _EDGE, _EDGE))
    weight = parts.weight(f"{name}.source.weight", (channels, _SOURCE_CHANNELS, 1, 1))
    return parts.node("Relu", f"{name}.relu", [parts.node("Conv", f"{name}.source", [source, weight])])


def _convolved(
    parts: NetworkParts,
    name: str,
    maps: tuple[str, str],
    kind: tuple[int, int],
    behind: Sequence[str],
    is_padded: bool = False,
) -> None:
    """Add a convolution of a map, with these channels and groups, and operators after it that may add the other map."""
    channels, groups = kind
    edge = 3 if is_padded or groups == channels else 1  # small weights: runtimes write the network to a file
    padding = 0 if is_padded else edge // 2
    weights = [parts.weight(f"{name}.weight", (channels, channels // groups, edge, edge))]
    weights.append(parts.weight(f"{name}.bias", (channels,)))
    window = {"kernel_shape": [edge, edge], "pads": [padding] * 4, "group": groups}
    result = parts.node("Conv", f"{name}:conv", [maps[0], *weights], **window)
    for at, one in enumerate(behind):
        result = _behind(parts, f"{name}:{at}", result, one, channels, maps[1])
    _read(parts, name, result, channels)


def _on_maps(parts: NetworkParts, name: str, maps: tuple[str, str], channels: int) -> None:
    """Add operators that read a map of these channels."""
    for at, operators in enumerate(_ON_MAPS):
        result = maps[0]
        for place, one in enumerate(operators):
            result = _behind(parts, f"{name}.map{at}:{place}", result, one, channels, maps[1])
        _read(parts, f"{name}.map{at}", result, channels)


def _behind(parts: NetworkParts, name: str, tensor: str, kind: str, channels: int, residual: str = "") -> str:
    """Add an operator, or those of which it consists, and return its result."""
    if kind in ("scale", "shift"):
        value = parts.weight(f"{name}.value", (channels, 1, 1))
        return parts.node("Mul" if kind == "scale" else "Add", name, [tensor, value])
    if kind == "BatchNormalization":
        return parts.batch_normalisation(name, tensor, channels)
    if kind == "residual":
        return parts.node("Add", name, [tensor, residual])
    return parts.activation(kind, name, [tensor])


def _read(parts: NetworkParts, name: str, tensor: str, channels: int) -> None:
    """Add a convolution that reads a result, and whose own is a result of the network."""
    weight = parts.weight(f"{name}.reader.weight", (_SOURCE_CHANNELS, channels, 1, 1))
    result = parts.node("Conv", f"{name}.reader", [tensor, weight])
    parts.outputs.append(helper.make_tensor_value_info(result, TensorProto.FLOAT, (1, _SOURCE_CHANNELS, _EDGE, _EDGE)))


def _transposed(parts: NetworkParts) -> None:
    """Add what exports with channels last have between two convolutions."""
    channels = _CONVOLUTIONS[0][0][0]
    tensor = _map(parts, "transposed", channels)
    tensor = parts.node("Transpose", _CANCELLING[0], [tensor], perm=[0, 2, 3, 1])
    tensor = parts.node("Sigmoid", "transposed.between", [tensor])
    tensor = parts.node("Transpose", _CANCELLING[1], [tensor], perm=[0, 3, 1, 2])
    _read(parts, "transposed", tensor, channels)


def _expanded(parts: NetworkParts) -> None:
    """Add an Expand in front of what repeats no element if it reads the original, as the table or as the indices."""
    shape = _EDGE, _EDGE, _SOURCE_CHANNELS
    for repeated in ((0,), (1,), (0, 1)):
        name = f"expanded{''.join(map(str, repeated))}"
        own = [(1, *shape[1:]) if place in repeated else shape for place in range(2)]
        read = [parts.input(f"{name}.table", own[0]), parts.integers(f"{name}.places", own[1])]
        for place in repeated:
            target = parts.numbers(f"{name}.shape{place}", shape)
            read[place] = parts.node("Expand", f"{name}:{place}", [read[place], target])
        result = parts.node("GatherElements", f"{name}:picked", read, axis=1)
        parts.outputs.append(helper.make_tensor_value_info(result, TensorProto.FLOAT, shape))


def _signed_pair(parts: NetworkParts) -> None:
    """Add a map of signed bytes between two convolutions."""
    channels = _CONVOLUTIONS[0][0][0]
    scaling = [parts.scalar("pair.scale", 1 / 16), parts.numbers("pair.zero", 0, np.int8)]
    tensor = _map(parts, "pair", channels)
    for op in ("QuantizeLinear", "DequantizeLinear"):
        tensor = parts.node(op, f"pair.{op}", [tensor, *scaling])
    _read(parts, "pair", tensor, channels)
