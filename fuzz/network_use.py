"""What harness does with a network once it has been read: layers, keys, estimates, probes, another batch.

None of it may fail: whatever the reader returns is a network that can be measured.
"""

import functools
import tempfile
from pathlib import Path

from fuzz import tables
from harness.errors import UnsupportedNetwork
from harness.estimation.network_estimate import estimate_network
from harness.lut.table import Lut
from harness.lut.table_files import publish, read_lut
from harness.network.fusion.fusion_patterns import pattern_of
from harness.network.fusion.fusion_rules import DEFAULT_RULES, UNSIGNED_PAIRS, FusionRule, as_executed, structure_of
from harness.network.fusion.rule_matching import match_all
from harness.network.layers import cut, place_of
from harness.network.network import Network
from harness.network.reading.batch import rebatch
from harness.network.reading.batch_check import check_rows
from harness.network.reading.network_codec import decode_network, encode_network
from harness.probe.auxiliary import AuxiliaryKind
from harness.probe.probe import network_probe, single_probe
from harness.probe.probe_plan import CutNetwork, plan_probes

_RULES = (*DEFAULT_RULES, FusionRule(UNSIGNED_PAIRS, 1, 1, "onnxruntime"))
_MAX_RUN_BYTES = 1 << 22
"""Networks whose tensors take more are not run, which would take too long."""
_WAYS = 8
"""Networks are used in one of four further ways, or in none."""
BATCH = 3


def use(network: Network, choice: int) -> None:
    """Use a network as all commands do; `choice` selects one of the more expensive ways."""
    layers = cut(network, DEFAULT_RULES)
    for at in range(len(layers)):
        place_of(network, layers, at)
    way, rest = choice % _WAYS, choice // _WAYS
    if way == 0:
        _plan(network, rest)
    elif way == 1:
        network_probe(network)
        for layer in layers:
            single_probe(network, layer)
    elif way == 2:
        estimate_network(network, _table())
    elif way == 3:
        _match(network)


def round_trip(network: Network) -> bytes:
    """Return the bytes by which the isolated process hands a network back; fail if others come of them."""
    content = encode_network(network)
    if encode_network(*decode_network(content)) != content:
        raise AssertionError("a network changes when it is handed back")
    return content


def _match(network: Network) -> None:
    structure_of(network)
    executed = as_executed(network, _RULES)
    for group in match_all(executed, _RULES):
        pattern_of(executed, group)


def _plan(network: Network, choice: int) -> None:
    blocked = frozenset(name for name, kind in network.types.items() if len(kind.shape) == 4)
    rules = _RULES if choice % 2 else DEFAULT_RULES
    executed = as_executed(network, rules)
    kinds = list(AuxiliaryKind)
    one = CutNetwork(executed, cut(executed, rules), blocked if choice % 3 else frozenset())
    plan_probes([one], rules, kinds[choice % len(kinds)], cache_bytes=None if choice % 5 else 1 << 20)


def set_batch(network: Network) -> None:
    """Set another batch and compare its rows, as the isolated process does."""
    try:
        found = rebatch(network, BATCH)
        if sum(kind.bytes for kind in found.network.types.values()) <= _MAX_RUN_BYTES:
            check_rows(network, found, threads=1)
    except UnsupportedNetwork:
        return
    round_trip(found.network)
    cut(found.network, DEFAULT_RULES)


@functools.cache
def _table() -> Lut:
    """Return a table with a predictor."""
    with tempfile.TemporaryDirectory() as folder:
        table = read_lut(publish(tables.table_of(8, learn=True), Path(folder)).path)
        table.variance({0: 1})
        return table
