"""Sweeps over machines: values from text, machines with changed parameters, and the knee of a curve."""

import math
import tomllib
from collections.abc import Iterator, Mapping
from typing import Any

import pytest
from hypothesis import given, settings, strategies as st

from device_agents.emulated_npu.emulator_errors import ContradictoryMachine, InvalidMachine
from device_agents.emulated_npu.machine import area_mm2, load_preset, parse_machine, preset_names, preset_text
from device_agents.emulated_npu.machine.description import OPTIONAL_KEYS
from device_agents.emulated_npu.machine.parts import Area
from harness.npu.sweep.grid import InvalidSweep, parse_axis, scale_of, shown
from harness.npu.sweep.machine_parameters import changed, parameters
from harness.npu.sweep.points import SweepPoint, pareto
from harness.npu.sweep.sweep_tables import knee

MOST = 64


def _keys(table: Mapping[str, Any], prefix: str = "") -> Iterator[str]:
    for key, value in table.items():
        yield from _keys(value, f"{prefix}{key}.") if isinstance(value, dict) else [prefix + key]


# --- values ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("mfu.rows=8,32,16", (8, 16, 32)),
        ("mfu.rows=1_024", (1024,)),
        ("nb_bytes=256K:2M:x2", (262_144, 524_288, 1_048_576, 2_097_152)),  # K is 1024 for sizes
        ("llc.bytes=1.5M", (1_572_864,)),  # 1.5 x 1024 x 1024
        ("clock_hz=500M,1G", (500_000_000, 1_000_000_000)),  # K is 1000 for clocks
        ("cores.link.bytes_per_s=1G:4G:x2", (10**9, 2 * 10**9, 4 * 10**9)),  # and for rates
        ("ddr.latency_ns=0:250:+100", (0, 100, 200)),  # 300 would be beyond 250
        ("ddr.latency_ns=0:30:+12.5", (0, 12.5, 25)),
        ("mfu.rows=8:30:x1.5", (8, 12, 18, 27)),
        ("mfu.rows=1:4:x1.3", (1, 2, 3, 4)),  # 1, 1.3, 1.69, 2.197, 2.8561, 3.71293 round to 1, 1, 2, 2, 3, 4
        ("mfu.rows=3,8:32:x2", (3, 8, 16, 32)),
        ("mfu.dataflow=weight-stationary,dot-product", ("weight-stationary", "dot-product")),
        ("shared_buffer=true,false", (True, False)),
    ],
)
def test_values_of_a_parameter(text: str, values: tuple[object, ...]) -> None:
    """Lists, ranges by a factor or a step, and suffixes are parsed; numbers are returned ascending."""
    axis = parse_axis(text, MOST)
    assert axis.key == text.partition("=")[0] and axis.values == values
    assert [type(value) for value in axis.values] == [type(value) for value in values]


@pytest.mark.parametrize(
    ("text", "mentions"),
    [
        ("mfu.rows", ("KEY=VALUES",)),
        ("mfu.rows=", ("not a number",)),
        ("mfu.rows=eight", ("mfu.rows", "eight", "not a number")),
        ("mfu.rows=-8", ("-8",)),
        ("mfu.rows=nan", ("nan",)),
        ("mfu.rows=1e999", ("1e999",)),
        ("mfu.rows=1K", ("suffix", "_hz")),
        ("nb_bytes=1KiB", ("1KiB",)),
        ("nb_bytes=1M:2M", ("range", "xFACTOR")),
        ("nb_bytes=1M:2M:x2:x2", ("range",)),
        ("nb_bytes=2M:1M:x2", ("before",)),
        ("nb_bytes=1M:2M:x1", ("does not grow",)),
        ("nb_bytes=1M:2M:x2K", ("factor", "suffix")),
        ("llc.bytes=0:2M:x2", ("does not grow",)),
        ("nb_bytes=1M:2M:+0", ("does not grow",)),
        ("mfu.rows=8,16,8", ("8", "twice")),
        ("mfu.rows=1:1000:+1", ("more than 64",)),
        ("mfu.rows=1:2:x1.00000000000000000001", ("more than 64",)),
        ("mfu.dataflow=a b", ("one word",)),
        ("mfu.row=8", ("mfu.row ", "did you mean mfu.rows")),
        ("rows=8", ("did you mean mfu.rows",)),
        ("link.bytes_per_s=1G", ("did you mean", "cores.link.bytes_per_s")),
        ("mfu=8", ("table", "mfu.columns")),
        ("name=8", ("name is not a key",)),
    ],
    ids=str,
)
def test_values_that_are_none(text: str, mentions: tuple[str, ...]) -> None:
    """Text that is not a key, number or range is refused, and the error names it."""
    with pytest.raises((InvalidSweep, InvalidMachine)) as refused:
        parse_axis(text, MOST)
    for word in mentions:
        assert word.lower() in f"{refused.value.what} {refused.value.why}".lower()


@settings(derandomize=True, max_examples=100)
@given(st.sampled_from(["nb_bytes", "mfu.rows", "clock_hz"]), st.integers(1, 2**40))
def test_values_read_as_they_are_shown(key: str, value: int) -> None:
    """A value as it is shown in tables, with its suffix, is the same value when it is given again."""
    assert parse_axis(f"{key}={shown(key, value)}", MOST).values == (value,)


@pytest.mark.parametrize(
    ("values", "scale"),
    [
        ((8, 16, 32, 64), "log"),  # ratios all 2, differences 8 … 32
        ((1, 2, 3, 4), "linear"),  # differences all 1, ratios 2 … 4/3
        ((8, 16, 32, 48, 64), "log"),  # ratios 2 … 4/3 are 1.5 apart, differences 8 … 16 are 2 apart
        ((0, 1, 10, 100), "linear"),  # 0 has no logarithm
        ((8, 64), "linear"),  # two values are on a line either way
    ],
)
def test_scale_of_values(values: tuple[int, ...], scale: str) -> None:
    """Values whose ratios vary less than their differences are on a logarithmic axis."""
    assert scale_of([float(value) for value in values]) == scale


# --- machines ----------------------------------------------------------------------------------------------------


def test_parameters_are_the_keys_of_the_file() -> None:
    """Every key of a machine's file, however deep, optional or not, is a parameter, and nothing else is."""
    optional = {key for key in OPTIONAL_KEYS if key not in ("area", "energy")}
    assert set(parameters()) == set(_keys(tomllib.loads(preset_text("edge")))) | optional


def test_an_optional_key_can_be_swept() -> None:
    """A key that the file leaves out has its default, and takes other values like any key."""
    edge = load_preset("edge")
    found = changed(edge, {"mfu.pixel_rows": 2, "ddr.weight_compression": 1.5, "energy.static_mw": 3})
    assert (found.mfu.pixel_rows, found.ddr.weight_compression, found.energy.static_mw) == (2, 1.5, 3.0)
    assert changed(found, {"mfu.pixel_rows": 1, "ddr.weight_compression": 1}).digest == edge.digest


@pytest.mark.parametrize("name", preset_names())
def test_changing_nothing_gives_the_same_machine(name: str) -> None:
    """Setting a value to what it already is leaves the machine unchanged."""
    machine = load_preset(name)
    assert changed(machine, {"mfu.rows": machine.mfu.rows}) == machine


def test_one_value_changes_and_no_other() -> None:
    """A value is set at the place of its key, at any depth, with the type of its field."""
    machine = load_preset("edge")
    found = changed(machine, {"ddr.bytes_per_s": 10**9, "cores.link.latency_ns": 7, "clock_hz": 2 * 10**9})
    assert (found.ddr.bytes_per_s, found.cores.link.latency_ns, found.clock_hz) == (1e9, 7.0, 2 * 10**9)
    assert isinstance(found.ddr.bytes_per_s, float)
    same = {"ddr.bytes_per_s": machine.ddr.bytes_per_s, "cores.link.latency_ns": machine.cores.link.latency_ns}
    assert changed(found, {**same, "clock_hz": machine.clock_hz}) == machine


def test_one_buffer_has_one_size() -> None:
    """On a machine with one buffer, either size sets both, and two sizes must agree; other machines set one."""
    one, two = load_preset("nvdla-256"), load_preset("edge")
    assert one.shared_buffer and not two.shared_buffer
    for key in ("nb_bytes", "sb_bytes"):
        found = changed(one, {key: 1 << 20})
        assert found.nb_bytes == found.sb_bytes == 1 << 20
    assert changed(two, {"nb_bytes": 1 << 21}).sb_bytes == two.sb_bytes
    with pytest.raises(ContradictoryMachine, match="sb_bytes 2097152 differs from nb_bytes 1048576"):
        changed(one, {"nb_bytes": 1 << 20, "sb_bytes": 1 << 21})


@pytest.mark.parametrize(
    ("setting", "mentions"),
    [
        ({"mfu.rows": 0}, ("mfu.rows is 0", "from 1 to 65536")),
        ({"mfu.rows": 1.5}, ("mfu.rows is 1.5", "whole number")),
        ({"nb_bytes": 0}, ("nb_bytes is 0", "from 1 to")),  # which leaves no room for the halo buffer either
        ({"mfu.rows": "many"}, ("many", "whole number")),
        ({"mfu.dataflow": "dot"}, ("'dot'", "dot-product")),
        ({"mfu.lanes": 8}, ("mfu.lanes is not a key",)),
    ],
    ids=str,
)
def test_values_that_no_machine_has(setting: Mapping[str, Any], mentions: tuple[str, ...]) -> None:
    """A value beyond its limits or of the wrong type is an error of its own, not a contradiction between values."""
    with pytest.raises(InvalidMachine) as refused:
        changed(load_preset("edge"), setting)
    assert not isinstance(refused.value, ContradictoryMachine)
    for word in mentions:
        assert word in f"{refused.value.what} {refused.value.why}"


def test_values_that_contradict_each_other() -> None:
    """Values that are allowed alone but not together are a contradiction: edge's halo buffer takes 262144 bytes."""
    with pytest.raises(ContradictoryMachine, match="halo_bytes 262144 leaves nothing of nb_bytes 262144"):
        changed(load_preset("edge"), {"nb_bytes": 262_144, "halo_bytes": 262_144})


def test_sizes_that_belong_together() -> None:
    """The halo buffer keeps its share of NB, and no cache has no bandwidth, unless they are set themselves."""
    edge = load_preset("edge")
    assert edge.halo_bytes * 4 == edge.nb_bytes
    assert changed(edge, {"nb_bytes": 64 << 10}).halo_bytes == 16 << 10
    assert changed(edge, {"nb_bytes": 64 << 10, "halo_bytes": 5}).halo_bytes == 5
    absent = changed(edge, {"llc.bytes": 0}).llc
    assert (absent.bytes, absent.bytes_per_s, absent.latency_ns, absent.burst_bytes) == (0, 0, 0, 0)
    with pytest.raises(ContradictoryMachine):
        changed(edge, {"llc.bytes": 0, "llc.latency_ns": 5})


def test_area_of_a_machine() -> None:
    """Area grows by each unit's figure, one buffer counts once, and neither figures nor areas identify a machine."""
    edge, nvdla = load_preset("edge"), load_preset("nvdla-256")
    more = area_mm2(changed(edge, {"mfu.rows": 33})) - area_mm2(edge)
    assert more == pytest.approx(32 * edge.area.mac_um2 / 1e6)
    more = area_mm2(changed(edge, {"sb_bytes": edge.sb_bytes + 1000})) - area_mm2(edge)
    assert more == pytest.approx(1000 * edge.area.sram_um2_per_byte / 1e6)
    assert nvdla.shared_buffer and nvdla.area == Area()
    halved = changed(nvdla, {"nb_bytes": nvdla.nb_bytes // 2})
    assert area_mm2(nvdla) - area_mm2(halved) == pytest.approx(nvdla.nb_bytes / 2 * 8 * 0.25 / 0.7 / 1e6)
    assert changed(edge, {"area.mac_um2": 1}).digest == edge.digest
    narrow = area_mm2(edge) - area_mm2(changed(edge, {"data_type": "int8"}))
    assert narrow == pytest.approx((32 * 32 + 64) * (7700 + 4184 - 282 - 137) / 1e6)


def test_area_may_be_missing_but_not_wrong() -> None:
    """A machine file without the table takes published figures of its type; a table has all keys, within limits."""
    text = preset_text("edge")
    start, end = text.index("[area]"), text.index("# A Linux board")
    without = parse_machine(text[:start] + text[end:], "edge")
    assert without.area == Area() and area_mm2(without) == pytest.approx(area_mm2(load_preset("edge")), rel=1e-3)
    for wrong in ("[area]\nmac_um2 = -1\nlane_um2 = 1\nsram_um2_per_byte = 1\n", "[area]\nmac_um2 = 1\n"):
        with pytest.raises(InvalidMachine, match=r"area\."):
            parse_machine(text[:start] + wrong + text[end:], "edge")


# --- Pareto front ------------------------------------------------------------------------------------------------


@settings(derandomize=True, max_examples=50)
@given(st.lists(st.tuples(st.integers(1, 8), st.one_of(st.none(), st.integers(1, 8))), min_size=1, max_size=12))
def test_front_is_what_nothing_beats(pairs: list[tuple[int, int | None]]) -> None:
    """A machine is on the front if and only if every other one is larger, slower, or equal in both."""
    points = [SweepPoint("m", {}, 1, float(area), seconds=seconds) for area, seconds in pairs]
    known = [(area, seconds) for area, seconds in pairs if seconds]
    expected = [
        at
        for at, (area, seconds) in enumerate(pairs)
        if seconds and all(a > area or s > seconds or (a, s) == (area, seconds) for a, s in known)
    ]
    found = pareto(points)
    assert sorted(found) == (expected if len({area for area, _ in known}) > 1 else [])
    assert [points[at].area_mm2 for at in found] == sorted(points[at].area_mm2 or 0.0 for at in found)


def test_front_by_energy_ignores_the_area() -> None:
    """With energy as the cost, the front is what no machine beats in energy and time."""
    points = [
        SweepPoint("m", {}, 1, area, energy_uj=energy, seconds=seconds)
        for area, energy, seconds in ((1.0, 9.0, 9.0), (9.0, 1.0, 9.0), (9.0, 9.0, 1.0), (9.0, 9.0, 9.0))
    ]
    assert pareto(points) == (0, 2)
    assert pareto(points, "energy") == (1, 2)


# --- knee --------------------------------------------------------------------------------------------------------

POWERS = [2.0**power for power in range(9)]


@settings(derandomize=True, max_examples=75)
@given(
    st.lists(st.integers(1, 10**6), min_size=3, max_size=12),
    st.sampled_from([POWERS, [float(at) for at in range(1, 13)]]),
    st.integers(-8, 8),
    st.integers(-8, 8),
)
def test_knee_does_not_depend_on_units(ys: list[int], xs: list[float], x_power: int, y_power: int) -> None:
    """Scaling either axis leaves the knee where it is (factors are powers of two, so that nothing is rounded)."""
    xs, ys = xs[: len(ys)], ys[: len(xs)]
    scaled = knee([x * 2.0**x_power for x in xs], [y * 2.0**y_power for y in ys])
    assert scaled == knee(xs, [float(y) for y in ys])


@settings(derandomize=True, max_examples=50)
@given(st.floats(-100, 100), st.floats(-10, 10), st.integers(3, 12))
def test_straight_lines_have_no_knee(start: float, slope: float, count: int) -> None:
    """A line has no knee, whether it rises, falls or is flat; on logarithmic axes a power of x is a line."""
    xs = [float(at) for at in range(1, count + 1)]
    assert knee(xs, [start + slope * x for x in xs]) is None
    powers = [3.0 * 1.7**at for at in range(count)]
    assert knee(powers, [1e6 * x ** (slope / 10) for x in powers]) is None


@settings(derandomize=True, max_examples=50)
@given(st.floats(0.02, 0.6), st.floats(1, 1e6))
def test_knee_of_a_saturating_curve(floor: float, height: float) -> None:
    """For c + 1/x over powers of two, the knee is where the curve is parallel to its chord, up to one place.

    On logarithmic axes c + 1/x has the slope -1 / (1 + c x), and its chord from 1 to 256 the slope -m with
    m = ln((c + 1) / (c + 1/256)) / ln 256, so that they are parallel at x = (1/m - 1) / c.
    """
    m = math.log((floor + 1) / (floor + 1 / 256)) / math.log(256)
    expected = math.log2((1 / m - 1) / floor)
    found = knee(POWERS, [height * (floor + 1 / x) for x in POWERS])
    assert found is not None and abs(found - expected) <= 1


def test_knee_of_a_corner() -> None:
    """A curve of two straight lines has its knee at the corner."""
    assert knee([1, 2, 3, 4, 5, 6], [100, 80, 60, 58, 56, 54]) == 2
    assert knee([8, 16, 32, 64, 128], [800, 400, 200, 200, 200]) == 2


def test_knee_where_less_is_better() -> None:
    """If cycles grow with the parameter, the knee is where a smaller value stops paying."""
    assert knee([0, 100, 200, 300, 400], [50, 50, 52, 80, 110]) == 2


def test_what_is_lost_again_does_not_hide_the_knee() -> None:
    """A value worse than an earlier one counts as the earlier one: the curve bends where its best was reached."""
    assert knee([1, 2, 3, 4, 5], [100, 60, 61, 66, 64]) == 1


@pytest.mark.parametrize(
    "ys",
    [[100, 98, 95, 60, 10], [100, 99.5, 99, 99, 99], [100, 100, 100, 100, 100], [1, 1, 1, 1, math.inf]],
    ids=["bent the other way", "within 2 %", "flat", "endless"],
)
def test_curves_without_a_knee(ys: list[float]) -> None:
    """Curves that bend the other way, hardly change, have two points, or have infinite values have no knee."""
    assert knee([1, 2, 3, 4, 5], ys) is None
    assert knee([1, 2], ys[:2]) is None
