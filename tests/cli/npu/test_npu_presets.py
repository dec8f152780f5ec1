"""`harness npu presets`."""

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
