"""Compares what bounds layers by the published table of npu01 with what the emulator reports: docs/accuracy.md.

    python -m benchmarks.accuracy.layer_bounds

The emulator attributes each cycle of a run to one layer and to the queue that determined it, IO or CP. A layer that the
table calls bound by arithmetic should have most of its cycles in CP, and one bound by weights or feature maps in IO.
"""

from collections import Counter, defaultdict

from benchmarks.generated_page import print_head, print_row
from device_agents.emulated_npu.compiler.options import OF_DEVICE
from harness.estimation.network_estimate import estimate_network
from harness.lut.layer_work import DeviceRoofs, LayerWork, WorkedLayer
from harness.lut.table import Lut
from harness.lut.table_choice import open_table
from harness.network.keyed_network import keyed
from harness.network.layers import cut
from harness.network.model_references import load_network
from harness.npu.emulation import emulate

NAMES = (
    *("squeezenet", "mobilenetv2", "resnet50", "resnet18", "efficientnet_b0", "vit_tiny", "bert_mini"),
    "inception_v2",
)
_QUEUES = {"arithmetic": ("compute", "fill"), "weights": ("io",), "features": ("io",)}


def shares(name: str, table: Lut) -> tuple[float, float]:
    """Return the shares of a network's cycles in layers whose bound is named and right, and named and wrong."""
    network = load_network(f"builtin:{name}")
    layers = cut(network, table.rules)
    owner = {node.name: at for at, layer in enumerate(layers) for node in layer.graph.nodes}
    cycles: defaultdict[int, Counter[str]] = defaultdict(Counter)
    run = emulate(f"builtin:{name}", values=False, compiler=OF_DEVICE)
    for row in run.fields["layers"]:
        at = next((owner[node] for node in row["nodes"] if node in owner), None)
        if at is not None:
            cycles[at][row["bound"]] += row["cycles"]
    works = _works(table, name)
    right = wrong = 0.0
    for at, found in cycles.items():
        work, (truth, _) = works[at], found.most_common(1)[0]
        if work is not None and work.bound is not None:
            right += found.total() * (truth in _QUEUES[work.bound])
            wrong += found.total() * (truth not in _QUEUES[work.bound])
    whole = sum(found.total() for found in cycles.values())
    return right / whole, wrong / whole


def _works(table: Lut, name: str) -> tuple[LayerWork | None, ...]:
    network = keyed(load_network(f"builtin:{name}"), table.rules)
    pairs = zip(network.layers, estimate_network(network, table).layers, strict=True)
    return DeviceRoofs.of(table).works([WorkedLayer(one.key.text, two.latency_s) for one, two in pairs])


def main() -> None:
    """Print the table."""
    table = open_table("npu01", None)
    print_head("network", "right", "wrong", "not known")
    for name in NAMES:
        right, wrong = shares(name, table)
        print_row(name, f"{right:.0%}", f"{wrong:.1%}", f"{1 - right - wrong:.0%}")


if __name__ == "__main__":
    main()
