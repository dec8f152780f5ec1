"""Fusion rules: what a device executes as one operator, with the evidence, and the rules of devices that report none.

A rule has a pattern of operators (fusion_patterns.py); rule_matching.py finds its places in a network, and
rule_learning.py makes rules of what devices report.

What a runtime fuses can depend on more than a pattern shows: on the operators around it, or on its place in the
network. A rule can therefore also list the groups of one network: `network 1f2e3d4c5b6a7988: 0 1 2; 5 6`.

Before it fuses, a runtime may rewrite a network. Rules with the names in `REWRITES` say so: `MOVED_TRANSPOSES` that it
leaves out Transposes which cancel each other, `UNSIGNED_PAIRS` that it makes signed pairs unsigned.
"""

import hashlib
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from harness.network.fusion.fusion_patterns import PatternNode, parse_pattern
from harness.network.fusion.moved_transposes import with_moved_transposes
from harness.network.key import attributes
from harness.network.network import Constant, Network, Node, TensorType
from harness.network.operator_kinds import ACTIVATIONS

_SHIFT = 128


def with_unsigned_pairs(network: Network) -> Network:
    """Return the network with `uint8` between the pairs that ONNX Runtime rewrites on x86; nodes keep their indices.

    Its kernels compute with unsigned activations there, so it turns `int8` between a QuantizeLinear and a
    DequantizeLinear into `uint8` and adds 128 to the zero point, which changes no result. It does so only if a single
    DequantizeLinear reads the tensor. One with more readers, such as a residual, stays signed; the operators around it
    compute on floats, and its conversions are layers of their own. A layer in a probe is not between its neighbours, so
    the network is rewritten before it is cut into layers.
    """
    nodes, types, constants = list(network.nodes), dict(network.types), dict(network.constants)
    for writer, reader, zero in _pairs(network):
        tensor, zero_point = writer.outputs[0], f"{writer.outputs[0]}#zero"
        types[tensor] = replace(types[tensor], dtype="uint8")
        types[zero_point] = TensorType("uint8", zero.shape)
        constants[zero_point] = Constant(types[zero_point], (zero.astype("int16") + _SHIFT).astype("uint8"))
        for node in (writer, reader):
            nodes[node.index] = replace(node, inputs=(*node.inputs[:2], zero_point))
    unfused = frozenset(node.index for node in nodes if _converts_signed(network, types, node))
    return replace(network, nodes=tuple(nodes), types=types, constants=constants, unfused=unfused)


def _converts_signed(network: Network, types: Mapping[str, TensorType], node: Node) -> bool:
    """Return whether an operator writes a tensor of signed bytes, or reads one, that depends on the inputs."""
    integers = {"QuantizeLinear": node.outputs, "DequantizeLinear": node.inputs}.get(node.op, ())[:1]
    return any(types[name].dtype == "int8" for name in integers) and not network.is_fixed(node)


def _pairs(network: Network) -> Iterator[tuple[Node, Node, np.ndarray[tuple[int, ...], np.dtype[np.int8]]]]:
    """Yield the operators that write and read each tensor that becomes unsigned, and its zero point."""
    for writer in network.nodes:
        if writer.op != "QuantizeLinear" or writer.outputs[0] in network.outputs:
            continue
        readers, zero = network.readers(writer.outputs[0]), _signed_zero(network, writer)
        if zero is None or len(readers) != 1 or readers[0].op != "DequantizeLinear":
            continue
        if readers[0].inputs[0] == writer.outputs[0] and _signed_zero(network, readers[0]) == zero:
            yield writer, readers[0], zero


def _signed_zero(network: Network, node: Node) -> np.ndarray[tuple[int, ...], np.dtype[np.int8]] | None:
    """Return the zero point of one of the two operators; None if it is not one known `int8`, or is given as a type."""
    constant = network.constants.get(node.inputs[2]) if len(node.inputs) > 2 else None
    if constant is None or constant.value is None or (constant.type.dtype, constant.type.elements) != ("int8", 1):
        return None
    return None if any(item.name == "output_dtype" and item.i for item in node.proto.attribute) else constant.value


MOVED_TRANSPOSES = "transposes: moved"
UNSIGNED_PAIRS = "int8 pairs: uint8"
REWRITES: Mapping[str, Callable[[Network], Network]] = {
    MOVED_TRANSPOSES: with_moved_transposes,
    UNSIGNED_PAIRS: with_unsigned_pairs,
}
"""What runtimes do to networks before they fuse, in this order."""
SIGNIFICANCE = 0.01
"""Largest p-value at which a rule found by probes holds."""
LISTED = "network "
_NODES = "[0-9]{1,7}( [0-9]{1,7})+"
_EXACT = re.compile(rf"{LISTED}[0-9a-f]{{16}}: ({_NODES}(; {_NODES})*)?\Z")


@dataclass(frozen=True)
class FusionRule:
    """A pattern and its evidence: the device fused `fused` of the `matched` places at which the pattern was seen.

    For a rule found by probes the places are shapes. Its `saving` is the time that fusion saves, as a fraction of the
    time that the smaller of the two fused groups takes alone. Its `p_value` is the probability of such a measurement
    if less than half of that time were saved, corrected for the number of patterns that were tried.
    """

    pattern: str
    matched: int = 0
    fused: int = 0
    source: str = "default"
    saving: float | None = None
    p_value: float | None = None

    @property
    def holds(self) -> bool:
        """Whether the device fused at least half of the places; a rule found by probes must also be significant.

        A default rule has no places and holds.
        """
        return 2 * self.fused >= self.matched and (self.p_value is None or self.p_value <= SIGNIFICANCE)

    @property
    def nodes(self) -> tuple[PatternNode, ...]:
        """The operators of the pattern, empty for a rule of another kind; raises ValueError if it is malformed."""
        groups = self.exact_groups
        if groups is not None:
            if len({index for group in groups for index in group}) < sum(map(len, groups)):
                raise ValueError(f"{self.pattern[:80]!r} lists a node twice")
            return ()
        return () if self.pattern in REWRITES else parse_pattern(self.pattern)

    @property
    def exact_groups(self) -> tuple[tuple[int, ...], ...] | None:
        """The groups of one network, by indices of its nodes, none if the device fuses nothing; None for a pattern."""
        if not _EXACT.match(self.pattern):
            return None
        groups = self.pattern.partition(": ")[2]
        return tuple(tuple(map(int, group.split())) for group in groups.split("; ")) if groups else ()


def _activations(*chains: str) -> tuple[FusionRule, ...]:
    return tuple(FusionRule(f"{chain};{kind}({chain.count(';')})") for chain in chains for kind in ACTIVATIONS)


DEFAULT_RULES: tuple[FusionRule, ...] = (
    *_activations("Conv(x0);BatchNormalization(0)", "Conv(x0)", "ConvTranspose(x0)", "Gemm(x0)", "MatMul(x0);Add(0)"),
    FusionRule("Conv(x0);BatchNormalization(0)"),
    FusionRule("ConvTranspose(x0);BatchNormalization(0)"),
    FusionRule("BatchNormalization(x0);Relu(0)"),
    FusionRule("MatMul(x0);Add(0)"),
    FusionRule("Sigmoid(x0);Mul(x0,0)"),
    FusionRule("Div(x0);Erf(0);Add(1);Mul(x0,2);Mul(3)"),
    FusionRule("ReduceMean(x0);Sub(x0,0);Pow(1);ReduceMean(2);Add(3);Sqrt(4);Div(1,5);Mul(6);Add(7)"),
)
"""Fusions that most devices do; used if the backend reports none. `Conv` without a kind matches every kind."""


def as_executed(network: Network, rules: Sequence[FusionRule]) -> Network:
    """Return the network as the device of these rules rewrites it before it fuses; nodes keep their indices."""
    patterns = {rule.pattern for rule in rules}
    for name, rewrite in REWRITES.items():
        network = rewrite(network) if name in patterns else network
    return network


def structure_of(network: Network) -> str:
    """Return a hash of a network's operators, types and connections, without names and weights."""
    labels = {name: f"x{at}" for at, name in enumerate(network.inputs)}
    digest = hashlib.sha256()
    for node in network.nodes:
        labels.update((name, f"{node.index}.{slot}") for slot, name in enumerate(node.results))
        read = [labels.get(name) or str(network.types.get(name)) for name in node.inputs]
        written = [str(network.types[name]) for name in node.results]
        digest.update(repr((node.domain, node.op, read, written, sorted(attributes(network, node).items()))).encode())
    return digest.hexdigest()[:16]
