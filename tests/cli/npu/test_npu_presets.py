"""`harness npu presets`."""

from pathlib import Path

from npu_command import Npu

from device_agents.emulated_npu.machine import load_preset, preset_names


def test_presets_lists_every_built_in_machine(npu: Npu) -> None:
    """Text and JSON list each preset once, with the numbers of its file and where they come from."""
    listed = npu("presets", "--json").data["presets"]
    assert tuple(each["name"] for each in listed) == preset_names()
    for each in listed:
        machine = load_preset(each["name"])
        assert each["macs_per_cycle"] == machine.mfu.multipliers and each["clock_hz"] == machine.clock_hz
        assert len(each["source"]) > 20 and not each["source"].startswith("#")
    lines = npu("presets").assert_ok().stdout.splitlines()
    assert [line.split()[0] for line in lines[1:]] == list(preset_names())
    (zhang,) = (line for line in lines if line.startswith("zhang-2015"))
    assert "Zhang et al., Optimizing FPGA-based" in zhang


def test_the_file_of_a_preset_is_a_machine_file(npu: Npu, network: Path, tmp_path: Path) -> None:
    """What `npu presets NAME` prints is accepted by --machine, and is the same machine; other names are refused."""
    path = tmp_path / "mine.toml"
    path.write_text(npu("presets", "nvdla-256").assert_ok().stdout)
    times = [
        npu("run", network, *machine, "--json").data["seconds"]
        for machine in (("--machine", path), ("--preset", "nvdla-256"))
    ]
    assert times[0] == times[1] > 0
    refused = npu("presets", "nvdla256").assert_refused(3).stderr
    assert "Did you mean nvdla-256" in refused and "TOML" not in refused
