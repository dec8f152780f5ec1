"""Check that the network that is measured is the network of the file: both run on the host, in turn, in one process.

What is sent to a device has no weights, no names and no constant parts. If a runtime executes it differently from the
file, every estimate is of another network, and comparing estimates with measurements cannot show it.
"""

from __future__ import annotations

import json
import math
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from harness.errors import reason_of
from harness.measure.summary import MAD_TO_SIGMA, Z_95
from harness.network.assemble import AssembledModel
from harness.network.model_references import ModelReference, model_path
from harness.network.network import Network

SECONDS = 1.5
TOLERANCE = 0.08
"""Differences of time that equal graphs show, because their weights have other values and lie elsewhere in memory."""
_TIMEOUT_S = 600.0
_MEDIAN_EFFICIENCY = math.sqrt(math.pi / 2)


@dataclass(frozen=True)
class FileComparison:
    """The time of what is sent as a multiple of the file's, with its 95 % interval, by ONNX Runtime on the host.

    Without a `ratio`, `reason` says why there is none.
    """

    ratio: float | None
    interval: tuple[float, float] | None = None
    runs: int = 0
    reason: str = ""

    @property
    def differs(self) -> bool:
        """Whether the two take different times, beyond noise and tolerance."""
        if self.interval is None:
            return False
        return self.interval[0] > 1 + TOLERANCE or self.interval[1] < 1 - TOLERANCE


def compare_with_file(reference: ModelReference, network: Network, sent: AssembledModel) -> FileComparison:
    """Run the file and what is sent for it in turn, on one thread of the host, in a process of their own.

    Symbolic dimensions of the file are set to those that are measured.
    """
    if network.unmeasured:
        return FileComparison(None, reason="a part of the file is not measured")
    with tempfile.TemporaryDirectory(prefix="harness-") as folder, model_path(reference) as path:
        (Path(folder) / "sent.onnx").write_bytes(sent.content)
        task = {
            "file": str(path),
            "sent": str(Path(folder) / "sent.onnx"),
            "weights": [spec.wire() for spec in sent.weights],
            "inputs": [
                {"spec": spec.wire(), "file": name} for spec, name in zip(sent.inputs, network.inputs, strict=True)
            ],
            "seconds": SECONDS,
        }
        command = [sys.executable, "-m", "device_agents.backends.onnxruntime.alternating_runs"]
        try:
            ended = subprocess.run(
                command, input=json.dumps(task), capture_output=True, text=True, timeout=_TIMEOUT_S, check=False
            )
            pairs = json.loads(ended.stdout) if ended.returncode == 0 else []
        except (OSError, subprocess.TimeoutExpired, ValueError) as error:
            return FileComparison(None, reason=f"the host could not run it: {reason_of(error)}"[:300])
    if not pairs:
        last = ended.stderr.strip().splitlines()[-1:] or ["it ended without a result"]
        return FileComparison(None, reason=f"the host could not run it: {last[0]}"[:300])
    return _compared(pairs)


def _compared(pairs: Sequence[tuple[float, float]]) -> FileComparison:
    """Return the median ratio of pairs of times (file, sent)."""
    ratios = [math.log(sent / file) for file, sent in pairs]
    centre = median(ratios)
    spread = MAD_TO_SIGMA * median(abs(one - centre) for one in ratios)
    half = Z_95 * _MEDIAN_EFFICIENCY * spread / math.sqrt(len(ratios))
    interval = (math.exp(centre - half), math.exp(centre + half))
    return FileComparison(math.exp(centre), interval, len(ratios))
