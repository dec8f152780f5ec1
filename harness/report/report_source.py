"""What stands behind a report: the command that wrote it, and the networks that it refused."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from harness.report.units import display

if TYPE_CHECKING:
    from harness.network.network_list import RefusedNetwork


@dataclass(frozen=True)
class ReportSource:
    """The words of the command that writes a report, and the networks that it could not use."""

    command: Sequence[str] = ()
    refused: Sequence[RefusedNetwork] = ()

    @property
    def command_line(self) -> str:
        """The command as a shell reads it, empty if no command wrote the report."""
        return shlex.join(display(word, 4000) for word in self.command)
