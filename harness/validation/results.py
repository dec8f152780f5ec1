"""Whole networks measured and compared with their estimates: values, errors, and the last validation of each device."""

from __future__ import annotations

import os
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import ConfigDict, TypeAdapter, ValidationError

from harness.errors import CHECK_FILE, ConfigurationError, reason_of
from harness.files import read_file, write_whole
from harness.lut.table import Lut
from harness.measure.noise.machine_noise import MachineNoise
from harness.network.model_references import ModelReference, is_builtin
from harness.network.network_list import RefusedNetwork
from harness.notebook import BarPlot, LatencyBar, frame, html_table
from harness.text import milliseconds
from harness.validation.file_comparison import FileComparison
from harness.validation.oracle_comparison import OracleReport
from harness.validation.stopping_rule import Stop
from harness.workspace import Workspace

if TYPE_CHECKING:
    import pandas


MOST_FLOOR = 0.10
"""Where latencies differ more between processes, no validation can say whether estimates are within 10 %."""
_MAX_BYTES = 1 << 28


@dataclass(frozen=True)
class NetworkValidation:
    """One network measured and estimated; `error` is (estimated - measured) / measured.

    `naive_s` is the sum of its layers, timed one by one in a warm loop, with neither auxiliary layer nor overhead
    subtracted, None unless requested. `wall_s` is the wall time, whatever the clock. `processes_s` are the medians of
    separate processes and `repeatability` is their standard deviation as a fraction, None for one process;
    `error_beyond_floor` is the excess of the absolute error over it. `compile_s` is the median time in which processes
    compiled the network, which is not part of a run, None where the device does not report it. `on_cpu` names nodes
    that run on the CPU although the device is another one. `file_comparison` compares the measured model with the file;
    it is None for devices with a clock of their own. `stopped` is the reason why no further process measured the
    network, None if another tool measured it. `preempted_processes` are not among `processes_s`: in most of their runs,
    other programs took a core from the network.
    """

    name: str
    estimated_s: float
    interval_s: tuple[float, float]
    measured_s: float
    measured_halfwidth_s: float
    wall_s: float
    error: float
    within_interval: bool
    processes_s: tuple[float, ...]
    repeatability: float | None
    error_beyond_floor: float
    naive_s: float | None
    naive_error: float | None
    compile_s: float | None = None
    on_cpu: tuple[str, ...] = ()
    file_comparison: FileComparison | None = None
    stopped: Stop | None = None
    preempted_processes: int = 0


@dataclass(frozen=True)
class Validation:
    """All networks; errors and shares are fractions.

    `floor` is the median of the networks' repeatability, None for one process, and `mape_beyond_floor` the mean of
    `error_beyond_floor`. `fingerprint_changes` names the differences between the device now and when the table was
    measured. `oracle` is None unless the device reports the truth. `refused_networks` are those that harness or the
    device refuses, or that the table does not cover; no figure contains them. `method` is the one that made the table,
    and `machine` the verdict on the machine while it measured.
    """

    device: str
    lut: str
    clock: str
    networks: tuple[NetworkValidation, ...]
    mape: float
    within_5: float
    within_10: float
    interval_coverage: float
    floor: float | None
    mape_beyond_floor: float
    fingerprint_changes: tuple[str, ...] = ()
    oracle: OracleReport | None = None
    refused_networks: tuple[RefusedNetwork, ...] = ()
    method: str = ""
    machine: MachineNoise | None = None

    def to_pandas(self) -> pandas.DataFrame:
        """Return a frame with one network in each row: estimated and measured latency, and the error as a fraction."""
        names = ("name", "estimated_s", "measured_s", "measured_halfwidth_s", "error", "within_interval", "wall_s")
        return frame([{name: getattr(one, name) for name in names} for one in self.networks], names)

    def plot(self) -> BarPlot:
        """Return a plot of the measured latency of each network and, in another colour, the estimated one."""
        bars = (bar for one in self.networks for bar in _bars(one))
        return BarPlot(f"{self.device}: measured and estimated latency with 95 % intervals", tuple(bars))

    def _repr_html_(self) -> str:
        rows = [
            (one.name, milliseconds(one.estimated_s), milliseconds(one.measured_s), f"{100 * one.error:+.1f} %")
            for one in self.networks
        ]
        caption = f"{self.device}: mean absolute error {100 * self.mape:.1f} %, clock {self.clock}"
        return html_table(caption, ("network", "estimated ms", "measured ms", "error"), rows)

    @property
    def is_answered(self) -> bool:
        """Whether latencies repeat well enough to say if estimates are within MOST_FLOOR."""
        resolution = None if self.machine is None else self.machine.resolution
        return resolution is None or resolution <= MOST_FLOOR


def _bars(network: NetworkValidation) -> tuple[LatencyBar, LatencyBar]:
    """Return the measured and the estimated latency, each with its 95 % interval."""
    measured_s, halfwidth_s = network.measured_s, network.measured_halfwidth_s
    return (
        LatencyBar(f"{network.name}, measured", measured_s, (measured_s - halfwidth_s, measured_s + halfwidth_s)),
        LatencyBar(f"{network.name}, estimated", network.estimated_s, network.interval_s, is_measured=False),
    )


def validation_of(table: Lut, networks: Sequence[NetworkValidation], **facts: Any) -> Validation:
    """Return the validation of a table by some networks, at least one, with further facts by their names."""
    errors = [abs(one.error) for one in networks]
    floors = [one.repeatability for one in networks if one.repeatability is not None]
    return Validation(
        device=table.device,
        lut=table.name,
        clock=table.clock,
        networks=tuple(networks),
        mape=statistics.fmean(errors),
        within_5=statistics.fmean(error <= 0.05 for error in errors),
        within_10=statistics.fmean(error <= 0.10 for error in errors),
        interval_coverage=statistics.fmean(one.within_interval for one in networks),
        floor=statistics.median(floors) if floors else None,
        mape_beyond_floor=statistics.fmean(one.error_beyond_floor for one in networks),
        **facts,
    )


@dataclass(frozen=True)
class LastValidation:
    """A validation, the networks that it was given, as paths or `builtin:NAME`, and the sizes of their dimensions."""

    __pydantic_config__ = ConfigDict(extra="forbid")

    models: tuple[str, ...]
    result: Validation
    dims: Mapping[str, int] = field(default_factory=dict)


def keep_validation(
    workspace: Workspace, models: Sequence[ModelReference], dims: Mapping[str, int], result: Validation
) -> None:
    """Replace the last validation on its device; raises ConfigurationError if it cannot be written."""
    paths = tuple(one if is_builtin(one) else os.path.abspath(one) for one in models if isinstance(one, str))
    content = TypeAdapter(LastValidation).dump_json(LastValidation(paths, result, dims))
    path = _path(workspace, result.device)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigurationError(f"{path} cannot be written", why=reason_of(error), next_step=CHECK_FILE) from error
    write_whole(path, content)


def last_validation(workspace: Workspace, table: Lut) -> LastValidation | None:
    """Return the last validation on the device of a table; None if there is none, or it is of another table.

    Raises ConfigurationError if the file is damaged.
    """
    path = _path(workspace, table.device)
    if not path.exists():
        return None
    try:
        found = TypeAdapter(LastValidation).validate_json(read_file(path, _MAX_BYTES))
    except (OSError, ValidationError) as error:
        why = reason_of(error) if isinstance(error, OSError) else "It holds no validation of this version of harness"
        step = f"Remove the file, or run `harness validate --device {table.device}` again"
        raise ConfigurationError(f"{path} cannot be read", why=why, next_step=step) from error
    return found if found.result.lut == table.name else None


def _path(workspace: Workspace, device: str) -> Path:
    return workspace.validations / f"{device}.json"
