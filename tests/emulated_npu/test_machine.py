"""Machine descriptions: reading, error messages, and the presets."""

import dataclasses
import json
import math
import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, strategies as st

from device_agents.emulated_npu.emulator_errors import InvalidMachine
from device_agents.emulated_npu.machine import (
    Machine,
    find_machine,
    load_preset,
    parse_machine,
    preset_text,
    read_machine,
)
from device_agents.emulated_npu.machine.consistency import check_machine

EDGE = preset_text("edge")
EDGE_KEYS = [
    (table, key)
    for table, content in (
        ("", tomllib.loads(EDGE)),
        *((name, tomllib.loads(EDGE)[name]) for name in ("mfu", "vfu", "llc", "ddr", "cores", "host")),
        ("host.noise", tomllib.loads(EDGE)["host"]["noise"]),
        *((f"cores.{name}", tomllib.loads(EDGE)["cores"][name]) for name in ("link", "chip_link")),
    )
    for key, value in content.items()
    if not isinstance(value, dict)
]
NUMBERS = [pair for pair in EDGE_KEYS if pair[1] not in {"data_type", "shared_buffer", "dataflow", "packing"}]


def _without(text: str, table: str, key: str) -> str:
    """Return the text without the line of that key."""
    place, lines = "", []
    for line in text.splitlines():
        if line.startswith("["):
            place = line.strip("[]")
        if not (place == table and re.match(rf"{key}\s*=", line)):
            lines.append(line)
    return "\n".join(lines)


def _changed(text: str, table: str, key: str, value: str) -> str:
    """Return the text with another value for that key."""
    text = _without(text, table, key)
    if not table:
        return f"{key} = {value}\n{text}"
    return text.replace(f"[{table}]\n", f"[{table}]\n{key} = {value}\n")


def _refusal(text: str) -> InvalidMachine:
    with pytest.raises(InvalidMachine) as caught:
        parse_machine(text, "mine")
    return caught.value


# --- Presets ----------------------------------------------------------------------------------------------------


# --- Reading ----------------------------------------------------------------------------------------------------


def test_a_file_is_read_with_its_values_and_named_as_the_file(tmp_path: Path) -> None:
    """A machine has the values of its TOML and the name of its file."""
    path = tmp_path / "board.toml"
    path.write_text(_changed(_changed(EDGE, "mfu", "rows", "16"), "host.noise", "spike_s", "3"))
    machine = find_machine(str(path))
    edge = load_preset("edge")
    assert machine == dataclasses.replace(
        edge,
        name="board",
        mfu=dataclasses.replace(edge.mfu, rows=16),
        host=dataclasses.replace(edge.host, noise=dataclasses.replace(edge.host.noise, spike_s=3.0)),
    )
    assert isinstance(machine.host.noise.spike_s, float)


def test_a_preset_is_found_by_name_even_beside_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A name selects a preset; a path or a suffix .toml selects a file."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "edge").write_text("rubbish")
    assert find_machine("edge") == load_preset("edge")
    (tmp_path / "own.toml").write_text(EDGE)
    assert find_machine("own.toml").digest == load_preset("edge").digest


def test_the_digest_does_not_depend_on_the_spelling_of_the_file() -> None:
    """Comments, order, spelling of numbers and the name do not change the digest."""
    edge = load_preset("edge")
    shuffled = _changed(EDGE, "mfu", "rows", "0x20").replace("# ", "#").replace("1_000_000_000", "1000000000")
    assert parse_machine(shuffled, "other").digest == edge.digest
    assert parse_machine(_changed(EDGE, "ddr", "latency_ns", "1e2"), "edge").digest == edge.digest
    assert re.fullmatch(r"[0-9a-f]{64}", edge.digest)


@pytest.mark.parametrize(("table", "key"), NUMBERS)
def test_digest_follows_every_number(table: str, key: str) -> None:
    """Another value of any key changes the digest."""
    content = tomllib.loads(EDGE)
    for part in filter(None, table.split(".")):
        content = content[part]
    # Within the limits of every key, and no contradiction.
    value = content[key] // 2 if content[key] in (262_144, 1_048_576) else content[key] * 2 or 0.5
    if key == "bytes":
        value = content[key] // 2
    assert parse_machine(_changed(EDGE, table, key, repr(value)), "edge").digest != load_preset("edge").digest


@pytest.mark.parametrize(
    ("table", "key", "value"),
    [
        ("", "io_outstanding", "4"),
        ("", "nb_port_bytes", "16"),
        ("", "sb_port_bytes", "16"),
        ("mfu", "pixel_rows", "2"),
        ("mfu", "pixel_columns", "2"),
        ("mfu", "depthwise", '"mfu"'),
        ("mfu", "output_lanes", "0.5"),
        ("mfu", "residual_lanes", "8"),
        ("mfu", "held_columns", "128"),
        ("llc", "weight_compression", "1.5"),
        ("ddr", "weight_compression", "2"),
        ("cores", "multicast", "true"),
        ("", "vfu_queue_depth", "16"),
        ("", "llc_queue_depth", "16"),
    ],
)
def test_an_optional_key_is_read_and_changes_the_digest(table: str, key: str, value: str) -> None:
    """A file may have the key or not; with another value than its default, the machine is another one."""
    edge, machine = load_preset("edge"), parse_machine(_changed(EDGE, table, key, value), "edge")
    default, own = (getattr(one if not table else getattr(one, table), key) for one in (edge, machine))
    assert own == tomllib.loads(f"v = {value}")["v"]
    assert parse_machine(_changed(EDGE, table, key, json.dumps(default)), "edge").digest == edge.digest
    assert machine.digest != edge.digest


@pytest.mark.parametrize(
    ("table", "key", "value"),
    [
        ("", "io_outstanding", "0"),
        ("", "nb_port_bytes", "-1"),
        ("mfu", "pixel_rows", "0"),
        ("mfu", "step_cycles", "0.5"),
        ("mfu", "preloads_weights", "1"),
        ("mfu", "depthwise", '"cpu"'),
        ("mfu", "output_lanes", "nan"),
        ("ddr", "weight_compression", "0.5"),
        ("energy", "mac_pj", "-1"),
        ("energy", "mac_nj", "1"),
    ],
)
def test_a_wrong_value_of_an_optional_key_is_refused(table: str, key: str, value: str) -> None:
    """The message names the key."""
    assert f"{table}.{key}".strip(".") in _refusal(_changed(EDGE, table, key, value)).what


# --- Refusals ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("table", "key"), EDGE_KEYS)
def test_a_missing_key_is_named(table: str, key: str) -> None:
    """Every key is required; the message names the missing one with its table."""
    assert f"{table}.{key}".strip(".") + " is missing" in _refusal(_without(EDGE, table, key)).what


@pytest.mark.parametrize(("table", "key"), NUMBERS)
@pytest.mark.parametrize(
    "value", ["true", '"1"', "nan", "inf", "-inf", "-1", "[1]", "{}", "1979-05-27", "0x" + "f" * 6000]
)
def test_a_value_out_of_range_is_refused(table: str, key: str, value: str) -> None:
    """Booleans, texts, NaN, infinity, negative and enormous numbers are refused with the name of the key."""
    refusal = _refusal(_changed(EDGE, table, key, value))
    assert f"{table}.{key}".strip(".") in refusal.what
    assert refusal.next_step
    assert len(str(refusal)) < 200


@pytest.mark.parametrize(
    ("table", "key"),
    [
        ("", "clock_hz"),
        ("", "nb_bytes"),
        ("", "sb_bytes"),
        ("", "io_queue_depth"),
        ("", "cp_queue_depth"),
        ("mfu", "rows"),
        ("mfu", "columns"),
        ("vfu", "lanes"),
        ("vfu", "special_cycles"),
        ("ddr", "bytes"),
        ("ddr", "bytes_per_s"),
        ("ddr", "burst_bytes"),
        ("host", "dma_bytes_per_s"),
        ("host.noise", "drift_period_s"),
        ("host.noise", "throttle_slowdown"),
    ],
)
def test_zero_is_refused_where_nothing_would_work(table: str, key: str) -> None:
    """Sizes, rates and depths must be above zero."""
    assert key in _refusal(_changed(EDGE, table, key, "0")).what


@pytest.mark.parametrize(
    ("table", "key", "value", "meant"),
    [
        ("mfu", "colums", "32", "columns"),
        ("", "clock_mhz", "1000", "clock_hz"),
        ("ddr", "bytes_per_sec", "1", "bytes_per_s"),
        ("host.noise", "jiter", "1", "jitter"),
        ("", "name", '"edge"', ""),
        ("", '"\\u001b[31m\\n"', "1", ""),
    ],
)
def test_an_unknown_key_is_refused_with_a_suggestion(table: str, key: str, value: str, meant: str) -> None:
    """The message suggests the nearest key; control characters of a file do not reach the terminal."""
    text = f"{key} = {value}\n{EDGE}" if not table else EDGE.replace(f"[{table}]\n", f"[{table}]\n{key} = {value}\n")
    refusal = _refusal(text)
    assert "is not a key" in refusal.what
    assert refusal.what.isprintable()
    assert not meant or f"Did you mean {meant}?" in refusal.why


@pytest.mark.parametrize(
    ("table", "key", "value", "meant"),
    [
        ("", "data_type", '"float23"', "float32"),
        ("", "data_type", '"int64"', ""),
        ("", "data_type", "32", ""),
        ("", "shared_buffer", "0", ""),
        ("mfu", "dataflow", '"weight-stationery"', "weight-stationary"),
        ("mfu", "packing", '"rows"', "row"),
    ],
)
def test_an_unknown_choice_is_refused(table: str, key: str, value: str, meant: str) -> None:
    """The message names the key and suggests the nearest choice."""
    refusal = _refusal(_changed(EDGE, table, key, value))
    assert key in refusal.what
    assert not meant or f"Did you mean {meant}?" in refusal.why


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ([("", "halo_bytes", "1_048_576")], "halo_bytes"),
        ([("", "halo_bytes", "1_048_570")], "nb_bytes"),
        ([("mfu", "dataflow", '"weight-stationary"')], "mfu.packing"),
        ([("mfu", "dataflow", '"output-stationary"'), ("mfu", "packing", '"stride"')], "mfu.packing"),
        ([("", "shared_buffer", "true"), ("", "sb_bytes", "65536")], "sb_bytes"),
        ([("", "nb_bytes", "32"), ("", "halo_bytes", "0")], "nb_bytes"),
        ([("", "sb_bytes", "32")], "sb_bytes"),
        ([("llc", "bytes", "0")], "llc.bytes"),
        ([("llc", "bytes_per_s", "0")], "llc.bytes_per_s"),
        ([("llc", "burst_bytes", "0")], "llc.burst_bytes"),
        ([("llc", "bytes", "32")], "llc.burst_bytes"),
        ([("ddr", "bytes", "32")], "ddr.burst_bytes"),
        (
            [("mfu", "packing", '"none"'), ("mfu", "dataflow", '"weight-stationary"'), ("mfu", "pixel_rows", "2")],
            "mfu.pix",
        ),
        ([("mfu", "step_cycles", "4")], "mfu.step_cycles"),
        ([("mfu", "preloads_weights", "true")], "mfu.preloads_weights"),
        (
            [
                ("mfu", "packing", '"none"'),
                ("mfu", "dataflow", '"output-stationary"'),
                ("mfu", "preloads_weights", "true"),
            ],
            "mfu.preloads_weights",
        ),
    ],
)
def test_values_that_contradict_each_other_are_refused(changes: list[tuple[str, str, str]], named: str) -> None:
    """Each contradiction names the keys and the next step."""
    text = EDGE
    for change in changes:
        text = _changed(text, *change)
    refusal = _refusal(text)
    assert named in refusal.what
    assert refusal.why
    assert refusal.next_step


def test_whole_numbers_may_have_an_exponent() -> None:
    """TOML reads 1e9 as a float; it is a whole number of hertz, and 1.5 bytes are refused."""
    assert parse_machine(_changed(EDGE, "", "clock_hz", "1e9"), "mine").clock_hz == 10**9
    assert "nb_bytes is 1.5" in _refusal(_changed(EDGE, "", "nb_bytes", "1.5")).what


def test_a_machine_changed_in_python_can_be_checked_too() -> None:
    """`check_machine` finds the same contradictions in a machine built in Python."""
    edge = load_preset("edge")
    assert check_machine(edge) is edge
    with pytest.raises(InvalidMachine, match="halo_bytes"):
        check_machine(dataclasses.replace(edge, halo_bytes=edge.nb_bytes))


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b"clock_hz = ", "Invalid value"),
        (b"\xff\xfe", "utf-8"),
        (b"#" * 100_000, "larger"),
        (b"a = " + b"[" * 5_000, ""),
        (b"a = 1" + b"0" * 5_000, "limit"),
    ],
)
def test_a_file_that_is_no_toml_text_is_refused(tmp_path: Path, content: bytes, why: str) -> None:
    """Broken syntax, other encodings, and files that are too large or nested too deeply are refused."""
    path = tmp_path / "bad.toml"
    path.write_bytes(content)
    with pytest.raises(InvalidMachine) as caught:
        read_machine(path)
    assert why in caught.value.why


@pytest.mark.parametrize(
    ("reference", "said"),
    [
        ("egde", "edge"),
        ("nvdla-2049", "nvdla-2048"),
        ("", "edge"),
        ("../presets/edge", "presets/edge"),
        ("none.toml", "none.toml"),
        ("/", "/"),
        ("/dev/zero", "/dev/zero"),
        ("a\0.toml", "a"),
        ("x" * 5_000 + ".toml", "xxx"),
    ],
)
def test_an_unknown_machine_is_refused(reference: str, said: str) -> None:
    """An unknown name suggests the nearest preset; folders and devices are not files."""
    with pytest.raises(InvalidMachine) as caught:
        find_machine(reference)
    assert said in caught.value.what + caught.value.why


VALUES = st.one_of(
    st.integers(),
    st.floats(),
    st.booleans(),
    st.text(max_size=8),
    st.lists(st.integers(), max_size=2),
    st.sampled_from(("none", "row", "stride", "dot-product", "weight-stationary", "int8")),
)


def _toml(value: Any) -> str:
    if isinstance(value, str):
        return '"' + "".join(f"\\U{ord(char):08x}" for char in value if not 0xD800 <= ord(char) < 0xE000) + '"'
    if isinstance(value, bool):
        return str(value).lower()
    return repr(value)


@given(st.lists(st.tuples(st.sampled_from(EDGE_KEYS), VALUES), min_size=1, max_size=3))
def test_any_change_is_either_refused_or_a_machine_of_sound_numbers(changes: list[tuple[tuple[str, str], Any]]) -> None:
    """Any change raises InvalidMachine or gives finite numbers and buffers with room."""
    text = EDGE
    for (table, key), value in changes:
        text = _changed(text, table, key, _toml(value))
    try:
        machine = parse_machine(text, "mine")
    except InvalidMachine as refusal:
        assert refusal.what.startswith("Machine mine")
        return
    assert isinstance(machine, Machine)
    assert 0 <= machine.halo_bytes < machine.nb_bytes
    assert machine.ddr.bytes_per_s >= 1
    assert math.isfinite(machine.ddr.bytes_per_s)
