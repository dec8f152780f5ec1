"""Whole networks that another tool measured, compared with their estimates; no layer is fitted to them."""

import math
import statistics
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from harness.errors import NetworkError
from harness.estimation.network_estimate import NetworkEstimate, estimate_network
from harness.lut.table import Lut
from harness.measure.summary import MAD_TO_SIGMA, Z_95
from harness.network.network import Network
from harness.table_import.cells import BadRow, Row
from harness.table_import.imported_layers import RowCounts
from harness.table_import.mapping import SECONDS, ImportMapping, NetworkRows
from harness.table_import.named_nodes import Networks
from harness.table_import.source_file import NotMeasured, RowLatency, combined, latency_of, stated_error_s
from harness.validation.results import NetworkValidation, Validation, validation_of

_FEW = 3


@dataclass(frozen=True)
class MeasuredNetwork:
    """A network with its latency as the tool measured it."""

    network: Network
    latency: RowLatency


def measured_networks(
    mapping: ImportMapping, rows: Iterable[tuple[NetworkRows, Row]], counts: RowCounts, networks: Networks
) -> list[MeasuredNetwork]:
    """Return the networks of rows and of the mapping, rows of one network combined; raises NetworkError."""
    found: dict[str, list[RowLatency]] = defaultdict(list)
    by_hash: dict[str, Network] = {}
    for section in mapping.network:
        if section.latency is not None:
            network, latency_s = networks.of(section, None), section.latency * SECONDS[mapping.unit]
            by_hash[network.sha256] = network
            found[network.sha256].append(RowLatency(latency_s, stated_error_s(mapping, latency_s), 1))
    for section, row in rows:
        try:
            latency, network = latency_of(mapping, row), networks.of(section, row)
            by_hash[network.sha256] = network
            found[network.sha256].append(latency)
        except NotMeasured:
            counts.not_measured += 1
        except (BadRow, NetworkError) as error:
            counts.refuse(row.line, BadRow(str(error)))
    return [MeasuredNetwork(by_hash[digest], combined(taken)) for digest, taken in found.items()]


@dataclass(frozen=True)
class ComparedNetworks:
    """The table with the errors of its sums, the estimates, and their errors; `uncovered` names other networks."""

    table: Lut
    estimates: tuple[NetworkEstimate, ...]
    validation: Validation | None
    uncovered: tuple[str, ...]


def compare_networks(table: Lut, measured: Sequence[MeasuredNetwork]) -> ComparedNetworks:
    """Compare estimates of an unpublished table with measured networks.

    The table returned has the same layers; its intervals of sums are widened by what the networks show beyond them.
    """
    pairs = [(estimate_network(one.network, table), one) for one in measured]
    covered = [(estimated, one) for estimated, one in pairs if estimated.latency_s is not None]
    uncovered = tuple(estimated.name for estimated, _ in pairs if estimated.latency_s is None)
    results = [_compare(estimated, one) for estimated, one in covered]
    excess = [_excess(result) for result in results]
    widened = replace(
        table,
        network_errors={
            one.network.sha256[:16]: math.hypot(table.sum_error, beyond)
            for (_, one), beyond in zip(covered, excess, strict=True)
        },
        sum_error=math.hypot(table.sum_error, _common(excess)),
    )
    validation = validation_of(table, results) if results else None
    return ComparedNetworks(widened, tuple(estimated for estimated, _ in covered), validation, uncovered)


def _compare(estimated: NetworkEstimate, measured: MeasuredNetwork) -> NetworkValidation:
    latency_s, interval_s = estimated.latency_s or 0.0, estimated.interval_s or (0.0, 0.0)
    measured_s, halfwidth_s = measured.latency.latency_s, Z_95 * measured.latency.stderr_s
    error = latency_s / measured_s - 1
    return NetworkValidation(
        name=estimated.name,
        estimated_s=latency_s,
        interval_s=interval_s,
        measured_s=measured_s,
        measured_halfwidth_s=halfwidth_s,
        wall_s=measured_s,
        error=error,
        within_interval=interval_s[0] <= measured_s <= interval_s[1],
        processes_s=(measured_s,),
        repeatability=None,
        error_beyond_floor=abs(error),
        naive_s=None,
        naive_error=None,
    )


def _excess(result: NetworkValidation) -> float:
    """Return the relative error of a sum that the errors of layers and of the measurement do not explain."""
    own_s = (result.interval_s[1] - result.interval_s[0]) / 2 / Z_95
    explained = math.hypot(own_s, result.measured_halfwidth_s / Z_95) / result.estimated_s
    difference = abs(result.estimated_s - result.measured_s) / result.estimated_s
    return math.sqrt(max(0.0, difference**2 - explained**2))


def _common(errors: Sequence[float]) -> float:
    """Return the further error of sums of any network: robust over several, the largest of a few, 0 without any."""
    if len(errors) < _FEW:
        return max(errors, default=0.0)
    return MAD_TO_SIGMA * statistics.median(errors)
