"""What stands behind a report: the command that wrote it, its networks, and the samples of its table."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from harness.report.units import display

if TYPE_CHECKING:
    from harness.lut.table_samples import TableSamples
    from harness.network.network_list import RefusedNetwork


@dataclass(frozen=True)
class ReportSource:
    """The words of the command that writes a report, the networks that it could not use, and the table's samples."""

    command: Sequence[str] = ()
    refused: Sequence[RefusedNetwork] = ()
    samples: TableSamples | None = None

    @property
    def command_line(self) -> str:
        """The command as a shell reads it, empty if no command wrote the report."""
        return shlex.join(display(word, 4000) for word in self.command)
