"""`harness devices`: the golden probe's band in this process."""

import json
from pathlib import Path

import pytest
from nullbench import DEVICE, Bench

import harness
from harness.cli.app import main


def test_health_has_its_reason(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The list says why a health is what it is, before and after the first measurement, in text and JSON."""
    bench = Bench(tmp_path / "lab")
    for measured in (False, True):
        if measured:
            with pytest.raises(SystemExit):
                main(["devices", "mark", DEVICE, "maintenance", "--reason", "new fan", "--workspace", str(bench.root)])
        reasons = []
        for more in ((), ("--json",)):
            capsys.readouterr()
            with pytest.raises(SystemExit):
                main(["devices", "list", "--workspace", str(bench.root), *more])
            reasons.append(capsys.readouterr().out)
        held = {one["name"]: one for one in json.loads(reasons[1])["devices"]}[DEVICE]
        expected = ("maintenance", "new fan") if measured else ("unknown", "never measured")
        assert held["health"] == expected[0] and expected[1] in held["health_reason"] and expected[1] in reasons[0]


def test_golden_shows_the_band_and_its_absence(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The band is shown with the number of its sessions; after `--forget` there is no band."""
    bench = Bench(tmp_path / "lab")
    policy = harness.RepeatPolicy(runs=2)
    harness.profile(bench.model, device=DEVICE, workspace=bench.root, policy=policy)
    words = ["devices", "golden", DEVICE, "--workspace", str(bench.root)]
    for more, shown in (((), "from 1 session,"), (("--forget",), "has no band yet"), ((), "has no band yet")):
        capsys.readouterr()
        with pytest.raises(SystemExit) as end:
            main([*words, *more])
        assert not end.value.code and shown in capsys.readouterr().out
