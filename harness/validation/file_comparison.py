"""Check that the network that is measured is the network of the file: both run on the host, in turn, in one process.

What is sent to a device has no weights, no names and no constant parts. If a runtime executes it differently from the
file, every estimate is of another network, and comparing estimates with measurements cannot show it. ONNX Runtime reads
the file again, so the process has limits on memory and processor time; without a comparison, validation continues.
"""

import hashlib
import json
import math
import os
import platform
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any

from pydantic import TypeAdapter

from harness import cache
from harness.errors import reason_of
from harness.host_runtime import OUT_OF_MEMORY
from harness.measure.summary import MEDIAN_EFFICIENCY, Z_95, mad_sigma
from harness.network.assemble import AssembledModel
from harness.network.keyed_reading import content_of
from harness.network.model_references import ModelReference, is_builtin, model_path
from harness.network.network import UNROLLED, Network
from harness.network.reading.limits import COMPARING, Limits, too_much_memory
from harness.network.reading.network_boundary import is_choice
from harness.version import VERSION

_SECONDS = 1.5
"""The longest time for runs; it ends earlier once these show that both take equally long within the TOLERANCE."""
_FEWEST_PAIRS = 10
_OPENINGS_PER_BYTE = 0.35 / (1 << 20)
"""Measured on networks of 5 to 47 MB: to write, read and load a file takes 0.2 to 0.5 starts of a process per MB."""
TOLERANCE = 0.08
"""Differences of time that equal graphs show, because their weights have other values and lie elsewhere in memory."""
_TIMEOUT_S = 600.0


@dataclass(frozen=True)
class FileComparison:
    """The time of what is sent as a multiple of the file's, with its 95 % interval, by ONNX Runtime on the host.

    `reason` says why there is no `ratio`, or why the two differ, as far as it is known.
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


_COMPARISON = TypeAdapter(FileComparison)


def runs_s(latency_s: float) -> float:
    """Return how long the runs of a comparison take on a quiet host, for a network of this latency."""
    return 2 * (_FEWEST_PAIRS + 1) * latency_s


def openings(network: Network) -> float:
    """Return the time of a comparison without its runs, as a multiple of the time to start a process."""
    return 1.0 + _OPENINGS_PER_BYTE * network.constant_bytes(network.nodes)


def compare_with_file(reference: ModelReference, network: Network, sent: AssembledModel) -> FileComparison:
    """Run the file and the model sent to the device alternately, on one thread of the host, in a separate process.

    Symbolic dimensions of the file are set to those that are measured. For a file, the process has the memory that
    reading it may take, external data included, and a minute of processor time. The cache keeps the result for a file
    that does not differ.
    """
    if network.unmeasured:
        return FileComparison(None, reason="a part of the file is not measured")
    key = _key(reference, network, sent)
    kept = _kept(cache.get(key)) if key else None
    if kept is not None:
        return kept
    found = _run_both(reference, network, sent)
    if key and found.ratio is not None and not found.differs:
        cache.put(key, json.dumps(asdict(found)).encode())
    if found.differs and any(node.reason == UNROLLED for node in network.free):
        return replace(found, reason="its loops are replaced by their iterations")
    return found


def _key(reference: ModelReference, network: Network, sent: AssembledModel) -> str:
    """Return the key of a comparison in the cache; empty if it also depends on other files or an unknown program."""
    code = cache.code_version("harness", "device_agents.backends.onnxruntime", "onnxruntime")
    content = content_of(reference)
    if not code or not content or _has_other_files(reference, network):
        return ""
    specs = json.dumps([[one.wire() for one in specs] for specs in (sent.weights, sent.inputs)])
    model = hashlib.sha256(sent.content).hexdigest()
    return cache.key_of("comparison with a file 1", VERSION, code, platform.node(), content, model, specs)


def _has_other_files(reference: ModelReference, network: Network) -> bool:
    """Return whether a network keeps weights outside its file."""
    if not isinstance(reference, str) or is_builtin(reference):
        return False
    return network.stored_bytes > os.stat(reference).st_size


def _kept(content: bytes | None) -> FileComparison | None:
    """Return the comparison that the cache holds, None if it holds none."""
    try:
        return None if content is None else _COMPARISON.validate_json(content)
    except ValueError:
        return None


def _run_both(reference: ModelReference, network: Network, sent: AssembledModel) -> FileComparison:
    """Return what one process shows of the file and of what is sent for it, or two if the first shows a difference."""
    limits = None if is_builtin(reference) else COMPARING.limits(network.stored_bytes)
    with tempfile.TemporaryDirectory(prefix="harness-") as folder, model_path(reference) as path:
        (Path(folder) / "sent.onnx").write_bytes(sent.content)
        task = {
            "file": str(path),
            "sent": str(Path(folder) / "sent.onnx"),
            "weights": [spec.wire() for spec in sent.weights],
            "inputs": [
                {"spec": spec.wire(), "file": name} for spec, name in zip(sent.inputs, network.inputs, strict=True)
            ],
            "given": _given(network),
            "seconds": _SECONDS,
            "fewest": _FEWEST_PAIRS,
            "tolerance": TOLERANCE,
            "limits": limits and [limits.memory_bytes, limits.cpu_s],
        }
        try:
            found = _compared(_pairs(task, limits))
            if not found.differs:
                return found
            # A process keeps its addresses and, on a busy machine, its disadvantage: a difference must show in two.
            again = _compared(_pairs(task, limits))
            ends = [*(found.interval or ()), *(again.interval or ())]
            return replace(again, interval=(min(ends), max(ends)))
        except (OSError, subprocess.TimeoutExpired, ValueError) as error:
            return FileComparison(None, reason=f"the host could not run it: {reason_of(error)}"[:300])


def _given(network: Network) -> dict[str, tuple[str, Sequence[int], int]]:
    """Return type, shape and value of the file's inputs that `--dim` made constant."""
    known = ((name, network.constants.get(name)) for name in sorted(network.symbols))
    return {
        name: (one.type.dtype, one.type.shape, int(one.value.item()))
        for name, one in known
        if one is not None and one.value is not None and is_choice(one.type)
    }


def _pairs(task: Mapping[str, Any], limits: Limits | None) -> list[tuple[float, float]]:
    """Return pairs of times (file, sent); raises ValueError with the reason if there are none."""
    command = [sys.executable, "-m", "device_agents.backends.onnxruntime.alternating_runs"]
    ended = subprocess.run(
        command, input=json.dumps(task), capture_output=True, text=True, timeout=_TIMEOUT_S, check=False
    )
    if limits and ended.returncode == -signal.SIGXCPU:
        spent = f"it takes more than {limits.cpu_s} s of processor time"
        raise ValueError(f"{spent}; {COMPARING.more_seconds(limits)} allows more")
    last = (ended.stderr.strip().splitlines() or ["it ended without a result"])[-1]
    if limits and (ended.returncode < 0 or any(text in last for text in OUT_OF_MEMORY)):
        raise ValueError(f"it {too_much_memory(limits)}; {COMPARING.more_memory(limits)} allows more")
    if ended.returncode:
        raise ValueError(last)
    pairs = [(float(file), float(sent)) for file, sent in json.loads(ended.stdout)]
    if not pairs or min(min(pair) for pair in pairs) <= 0:
        raise ValueError(last)
    return pairs


def _compared(pairs: Sequence[tuple[float, float]]) -> FileComparison:
    """Return the median ratio of pairs of times (file, sent)."""
    ratios = [math.log(sent / file) for file, sent in pairs]
    centre = median(ratios)
    half = Z_95 * MEDIAN_EFFICIENCY * mad_sigma(ratios) / math.sqrt(len(ratios))
    interval = (math.exp(centre - half), math.exp(centre + half))
    return FileComparison(math.exp(centre), interval, len(ratios))
