"""The sources of a report: the command that wrote it, its networks, and the samples of its table."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from harness.report.networks.network_graph import connections
from harness.report.units import display

if TYPE_CHECKING:
    from harness.lut.table_samples import TableSamples
    from harness.network.keyed_network import KeyedNetwork
    from harness.network.network_list import RefusedNetwork


@dataclass(frozen=True)
class ReportSource:
    """The words of the command that writes a report, its networks, those it could not use, and the table's samples.

    `networks` are those of the estimates, in the same order; without them the report has no graphs. `dims` are
    the values of symbolic dimensions.
    """

    command: Sequence[str] = ()
    refused: Sequence[RefusedNetwork] = ()
    samples: TableSamples | None = None
    networks: Sequence[KeyedNetwork] = ()
    dims: Mapping[str, int] = field(default_factory=dict)

    @property
    def edges(self) -> list[tuple[tuple[int, int], ...] | None]:
        """Which layers of each network read results of which."""
        return [connections(network.layers) for network in self.networks]

    @property
    def command_line(self) -> str:
        """The command as a shell reads it, empty if no command wrote the report."""
        return shlex.join(display(word, 4000) for word in self.command)

    @property
    def dim_options(self) -> str:
        """The options of a command that set the symbolic dimensions, with a space before each."""
        return "".join(f" --dim {shlex.quote(f'{display(name)}={value}')}" for name, value in self.dims.items())
