"""`harness devices`: the golden probe's band in this process."""

from __future__ import annotations

from pathlib import Path

import pytest
from nullbench import DEVICE, Bench

import harness
from harness.cli.app import main


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
