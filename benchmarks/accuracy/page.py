"""The page docs/accuracy.md and its targets."""

from benchmarks.generated_page import NO_TARGET, ROOT, PartsPage

_TARGETS = {
    "npu01: layers against the oracle, median error": "<= 1 %",
    "npu01: layers against the oracle, 95th percentile": "<= 3 %",
    "npu01: networks, worst error": "<= 5 %",
    "npu01: networks, RMSPE": "<= 1.5 %",
    "npu01: known layers in unknown neighbourhoods, mean error": "within 2 %",
    "npu01: a, b, c, worst error": "<= 2 %",
    "npu01: 95 % intervals of a, b, c hold": "93 to 97 %",
    "npu01: plain S1, networks, mean error": "<= 11 %",
    "npu01: plain S1, 95 % intervals of networks": NO_TARGET,
    "cpu01: plain S1, networks, mean error": NO_TARGET,
    "cpu01: plain S1, 95 % intervals of networks": NO_TARGET,
    "cpu01: layers against the profile, time-weighted error": "<= 1.0 %",
    "cpu01: layers above 50 µs, mean error": "<= 6 %",
    "cpu01: networks, median error": "<= 1.5 %",
    "cpu01: networks, mean error": "<= 3 %",
    "cpu01: networks within 10 %": "all",
    "cpu01: networks within 5 %": ">= 13 of 15",
    "cpu01, network left out: median error": "<= 6 %",
    "cpu01, network left out: within 10 %": ">= 12 of 15",
    "npu01, network left out: median error": "<= 3 %",
    "npu01, network left out: within 10 %": ">= 14 of 15",
    "npu01: left-out layers inside their 90 % interval": "88 to 92 %",
    "cpu01: left-out layers inside their 90 % interval": "90 %, p >= 0.01",
    "npu01: left-out networks inside their 90 % interval": "90 %, p >= 0.01",
    "cpu01: left-out networks inside their 90 % interval": "90 %, p >= 0.01",
    "npu01: 90 % intervals of networks hold": "90 %, p >= 0.01",
    "cpu01: 90 % intervals of networks hold": "90 %, p >= 0.01",
    "V100, 3,000 rows known: within 10 %": ">= 65 %",
    "V100, 10,000 rows known: within 10 %": ">= 75 %",
    "V100: inside the 90 % interval": "90 %, p >= 0.01",
    "cpu01, 2 threads: networks within 10 %": NO_TARGET,
    "cpu-openvino: networks within 10 %": NO_TARGET,
    "Device time on npu01, against 50 runs a probe": NO_TARGET,
    "Device time on cpu01, against 50 runs a probe": NO_TARGET,
}
PAGE = PartsPage(ROOT / "docs" / "accuracy.md", _TARGETS)
reached = PAGE.reached
