"""Random forests on kernels, as nn-Meter predicts, beside our predictor: a part of docs/performance.md.

nn-Meter learns one forest for each kind of fused kernel from a few sizes, and adds up the kernels of a network. Its
package holds no predictors, and fetches those it has from the network, so its method is written here in a few lines.
Both predictors learn from the same entries, without those of the network that they predict.
"""

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from sklearn.ensemble import RandomForestRegressor

from benchmarks.accuracy.devices import TENTH, Errors
from benchmarks.accuracy.left_out import left_out
from benchmarks.generated_page import Section, percent, signed, table
from benchmarks.performance.measuring import Run
from benchmarks.performance.page import reached
from harness import build_lut, profile, validate
from harness.estimation.network_estimate import estimate_network
from harness.lut.learning import training_examples
from harness.lut.table import Lut
from harness.lut.table_choice import PUBLISHED
from harness.lut.table_files import read_lut
from harness.network.layers import context_of, cut
from harness.network.model_references import BUILTIN_PREFIX
from harness.network.network import Network
from harness.network.network_list import load_networks
from harness.predictor.features.key_features import describe
from harness.predictor.features.layer_features import LayerFeatures

NETWORKS = ("dscnn", "squeezenet", "mobilenetv2", "resnet18", "efficientnet_b0", "resnet50")
QUICK_NETWORKS = ("dscnn",)
TREES, PROCESSES, WAIT_S = 240, 2, 300.0


@dataclass(frozen=True)
class Predicted:
    """The relative errors of both predictors for a network, and the layers whose kind no forest knows."""

    network: str
    forests: float
    ours: float
    unknown: int


def forests_section(run: Run) -> Section:
    """Leave out one network after the other, of the published table of `npu01` and of one measured on `cpu01`."""
    (published,) = map(read_lut, (PUBLISHED / "npu01").glob("*-*"))
    found = {"npu01": _each(run, published, QUICK_NETWORKS if run.quick else NETWORKS)}
    if not run.quick:
        workspace = run.workspace("forests")
        profile([BUILTIN_PREFIX + name for name in NETWORKS], device="cpu01", workspace=workspace, wait_s=WAIT_S)
        found["cpu01"] = _each(run, build_lut("cpu01", workspace=workspace), NETWORKS)
    rows: list[tuple[object, ...]] = []
    medians = []
    for device, networks in found.items():
        rows += [(device, one.network, signed(one.forests), signed(one.ours), one.unknown) for one in networks]
        forests, ours = (Errors(tuple(getattr(one, field) for one in networks)) for field in ("forests", "ours"))
        rows += [
            (device, "**median**", f"**{percent(forests.median)}**", f"**{percent(ours.median)}**", ""),
            (device, "**within 10 %**", forests.share(TENTH), ours.share(TENTH), ""),
        ]
        medians.append(f"{percent(forests.median)} and {percent(ours.median)} on {device}")
    header = ("device", "network left out", "forests", "ours", "layers of a kind without a forest")
    text = (
        f"Errors of whole networks against their measurement. Each kind of fused kernel has a forest of {TREES} trees "
        "over height, channels, kernel, stride, multiply-adds and parameters. A kind without a forest counts as 0, as "
        f"in nn-Meter. The overhead of the table is added for both.\n\n{table(header, rows)}"
    )
    target = "forests on kernels, network left out: median error, theirs and ours"
    return Section(text, (reached(target, "; ".join(medians), None),))


def _each(run: Run, known: Lut, names: Sequence[str]) -> list[Predicted]:
    """Measure the networks, and predict each from the entries of the others."""
    models = [BUILTIN_PREFIX + name for name in names]
    workspace = run.workspace(f"forests-validation-{known.device}")
    validated = validate(
        models, device=known.device, lut=known.path, workspace=workspace, processes=PROCESSES, wait_s=WAIT_S
    )
    measured_s = {one.name: one.measured_s for one in validated.networks}
    pairs = [(network, _both(known, network, measured_s[network.name])) for network in load_networks(models)]
    return [found for _, found in pairs if found is not None]


def _both(known: Lut, network: Network, measured_s: float) -> Predicted | None:
    """Predict a network with both predictors; None if too few entries are left."""
    ours = left_out(known, network, measured_s)
    if ours is None:
        return None
    layers = cut(network, known.rules)
    own = {layer.key.digest for layer in layers}
    described = [describe(layer.key.text, context_of(network, layer)) for layer in layers]
    forests = grown(known, own, {layer.operator for layer in described if layer is not None})
    kinds = [forests.get(layer.operator) if layer else None for layer in described]
    latency_s = sum(
        float(forest.predict([_features(layer)])[0])
        for forest, layer in zip(kinds, described, strict=True)
        if forest is not None and layer is not None
    )
    latency_s += estimate_network(network, known).overhead_s
    return Predicted(network.name, latency_s / measured_s - 1, ours.error, kinds.count(None))


def grown(known: Lut, left_out_keys: set[str], kinds: Collection[str]) -> Mapping[str, RandomForestRegressor]:
    """Return a forest for each of these kinds of kernel that the entries have, learnt without those of these keys."""
    kept = [entry for entry in known.entries if entry.key not in left_out_keys]
    rows: dict[str, list[tuple[list[float], float]]] = defaultdict(list)
    for example in training_examples(kept):
        if example.layer.operator in kinds:
            rows[example.layer.operator].append((_features(example.layer), example.latency_s))
    forests = {}
    for kind, examples in rows.items():
        features, latencies_s = zip(*examples, strict=True)
        forest = RandomForestRegressor(TREES, random_state=0)
        forests[kind] = forest.fit(np.array(features), np.array(latencies_s))
    return forests


def _features(layer: LayerFeatures) -> list[float]:
    sizes = (layer.in_size[0], layer.in_channels, layer.out_channels, layer.kernel[0], layer.stride[0])
    return [*map(float, sizes), float(layer.macs), float(layer.weight_elements)]
