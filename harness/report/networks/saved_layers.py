"""The layers of all networks as a CSV file inside the report, with the columns of `harness estimate --csv`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from harness.report.page_values import SavedFile

if TYPE_CHECKING:
    from harness.estimation.network_estimate import NetworkEstimate

_FIELDS = ("op", "key", "context", "latency_s", "stderr_s", "remainder_s", "source")


def saved_layers(estimates: Sequence[NetworkEstimate]) -> SavedFile:
    """Return a row for each layer, and one for each network's overhead, in seconds with all their digits."""
    rows: list[list[object]] = []
    for network in estimates:
        rows += [[network.name, layer.name, *(getattr(layer, name) for name in _FIELDS)] for layer in network.layers]
        overhead = {"op": "overhead", "latency_s": network.overhead_s, "source": "fitted"}
        rows.append([network.name, "overhead", *(overhead.get(name, "") for name in _FIELDS)])
    return SavedFile.csv("layers.csv", ("network", "layer", *_FIELDS), rows)
