"""ResNet-50 on machines configured as in NVDLA's performance sheet: the event-driven model against the sheet."""

from __future__ import annotations

from typing import Any

import pytest
from nvdla import ROWS, frames_per_s

TOLERANCE = 0.15


@pytest.mark.long
@pytest.mark.parametrize("row", ROWS, ids=lambda row: str(row["macs"]))
def test_event_driven_within_15_percent_of_the_sheet(row: dict[str, Any]) -> None:
    """With a barrier between layers and no Winograd the machine takes the sheet's time within 15 %."""
    assert abs(frames_per_s(row["macs"], True) / row["direct_fps"] - 1) <= TOLERANCE


@pytest.mark.long
@pytest.mark.parametrize("row", ROWS, ids=lambda row: str(row["macs"]))
def test_without_the_barrier_layers_overlap(row: dict[str, Any]) -> None:
    """Without the barrier the same network is no slower."""
    assert frames_per_s(row["macs"], False) >= frames_per_s(row["macs"], True)
