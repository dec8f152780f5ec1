"""The page docs/performance.md and its targets."""

from benchmarks.generated_page import NO_TARGET, ROOT, PartsPage, Reached
from benchmarks.performance.measuring import LINEAR_EXPONENT, Growth

_LINEAR = f"exponent <= {LINEAR_EXPONENT}"
_TARGETS = {
    "`harness --help`, over Python alone": NO_TARGET,
    "`harness estimate` of a file read before, over Python and `onnx.load`": NO_TARGET,
    "layers: read and estimate a network": _LINEAR,
    "layers: estimate a network read before": _LINEAR,
    "CPU time that harness adds to a sample": NO_TARGET,
    "time on the device, of a campaign on `cpu01`": NO_TARGET,
    "probes that stay loaded, over probes loaded for each pass": NO_TARGET,
    "samples in the journal: check": _LINEAR,
    "samples in the journal: read": _LINEAR,
    "samples in the journal: add 50 series": "exponent <= 0.1",
    "entries: load a table, look up 60": _LINEAR,
    "entries: load 100,000, look up 60": "<= 50 ms",
    "entries: load a table without the cache": _LINEAR,
    "candidates: latency": _LINEAR,
    "candidates: latency and interval": _LINEAR,
    "devices: read the inventory": _LINEAR,
    "devices: profile each of a fleet": _LINEAR,
    "layers: compile for the emulated NPU": _LINEAR,
    "cycles: time a program on one core": _LINEAR,
    "cycles: time a program in the engine for many cores": _LINEAR,
    "Vela: CPU time of compiling, theirs over ours": NO_TARGET,
    "ZigZag: CPU time for ResNet-18, theirs over ours": NO_TARGET,
    "forests on kernels, network left out: median error, theirs and ours": NO_TARGET,
}
PAGE = PartsPage(ROOT / "docs" / "performance.md", _TARGETS)
reached = PAGE.reached


def reached_linear(target: str, growth: Growth) -> Reached:
    """Return the row of a task whose time should grow at most linearly."""
    return reached(target, growth.figure, growth.is_linear)
