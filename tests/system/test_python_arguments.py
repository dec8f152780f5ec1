"""Arguments of the exported functions: wrong ones are one error, and numbers of numpy are numbers."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx.parser
import pytest

import harness

FIVE_RUNS = harness.RepeatPolicy(runs=5)
RELU = onnx.parser.parse_model("""
    <ir_version: 8, opset_import: ["" : 17]>
    small (float[rows, 8, 16, 16] x) => (float[rows, 8, 16, 16] y) { y = Relu (x) }
""")
CALLS: dict[str, Callable[..., Any]] = {
    "profile": lambda **given: harness.profile(RELU, **{"device": "null01", "dims": {"rows": 1}, **given}),
    "estimate": lambda **given: harness.estimate(RELU, **{"device": "npu01", "dims": {"rows": 1}, **given}),
    "validate": lambda **given: harness.validate(RELU, **{"device": "npu01", "dims": {"rows": 1}, **given}),
    "benchmark": lambda **given: harness.benchmark(RELU, **{"device": "null01", "dims": {"rows": 1}, **given}),
    "trace": lambda **given: harness.trace(RELU, **{"devices": ("npu01",), "dims": {"rows": 1}, **given}),
    "emulate": lambda **given: harness.emulate(RELU, **{"dims": {"rows": 1}, **given}),
    "build_lut": harness.build_lut,
    "open_lut": harness.open_lut,
    "load_inventory": lambda path: harness.load_inventory(path),
    "import_lut": lambda **given: harness.import_lut(**{"file": "x.csv", "mapping": "x.toml", **given}),
    "estimate_space": lambda space: harness.estimate_space(space, device="npu01"),
    "super_network": lambda **given: harness.super_network(**{"name": "n", "positions": {"a": {"b": RELU}}, **given}),
    "ProfileRequest": lambda **given: harness.ProfileRequest(**{"device": "null01", **given}),
}
WRONG: list[tuple[str, str, Any]] = [
    *(("profile", "seed", value) for value in (-1, 2**63, "1", 1.5, None, True)),
    *(("profile", "device", value) for value in (5, b"null01", ["null01"], Path("null01"))),
    *(("profile", name, value) for name in ("stop", "observe", "policy") for value in (5, "x", {"runs": 5})),
    *(("profile", "wait_s", value) for value in (None, "5", -1, float("nan"))),
    *(("profile", name, "yes") for name in ("fresh", "strict")),
    *(("estimate", "device", value) for value in (5, b"npu01", ["npu01"])),
    *(("estimate", "lut", value) for value in (5, b"x", [], RELU)),
    *(("estimate", "dims", value) for value in (5, "rows=1", [("rows", 1)], {1: 1}, {"rows": "1"}, {"rows": 1.5})),
    *(("validate", "processes", value) for value in (0, 1.5, "2")),
    *(("benchmark", name, value) for name in ("batches", "threads") for value in (5, "1", (), (0,), ("x",), None)),
    *(("benchmark", "runs", value) for value in (0, "5", 2.5)),
    *(("trace", "devices", value) for value in (5, "npu01", (Path("npu01"),))),
    *(("emulate", "preset", value) for value in (5, Path("edge"))),
    *(("emulate", "machine", value) for value in (5, b"x")),
    *(("emulate", "compiler", harness.CompilerOptions(**one)) for one in ({"chains": "x"}, {"tile": (0, 0)})),
    *(("emulate", "compiler", value) for value in (5, {}, harness.CompilerOptions(tile="4x4"))),  # type: ignore[arg-type]
    *(("build_lut", name, 5) for name in ("note", "observe", "device")),
    ("load_inventory", "path", 5),
    *(("import_lut", name, None) for name in ("file", "mapping", "sampling")),
    ("estimate_space", "space", RELU),
    *(("super_network", "positions", value) for value in (None, {"a": 5}, {"a": {}}, {"a": {"b": "x.onnx"}})),
    ("super_network", "positions", {"a": {"b,c": RELU, "d": RELU}}),
    *(("ProfileRequest", name, "x") for name in ("seed", "policy", "dims", "batch", "space")),
]


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty workspace in the current folder, on a path with spaces and other letters."""
    place = tmp_path / "my lab ü"
    place.mkdir()
    monkeypatch.chdir(place)
    return place


@pytest.mark.parametrize(("function", "name", "value"), WRONG)
def test_a_wrong_argument_is_named(function: str, name: str, value: Any, folder: Path) -> None:
    """Any function names the argument, its value and what it must be, and writes nothing."""
    with pytest.raises(harness.errors.UsageError, match=f"^{name} is .*It must be ") as caught:
        CALLS[function](**{name: value})
    assert str(caught.value).isprintable()
    assert not list(folder.iterdir())


@pytest.mark.parametrize("name", ["profile", "estimate", "validate", "benchmark", "trace", "emulate", "import_lut"])
def test_arguments_that_do_not_fit_name_the_function(name: str) -> None:
    """A missing, an unknown and a surplus argument are errors of the function that was called."""
    function = getattr(harness, name)
    calls: list[tuple[list[Any], dict[str, Any]]] = [([RELU], {"devise": "npu01"}), ([RELU] * 9, {})]
    for values, given in calls if name == "profile" else [*calls, ([], {})]:
        with pytest.raises(TypeError, match=rf"^{name}\(\): .* argument"):
            function(*values, **given)


@pytest.mark.parametrize("value", [5, b"lab", [], True])
def test_a_workspace_that_is_no_path_is_refused(value: Any) -> None:
    """A workspace of another type is a configuration error, like a folder that does not exist."""
    with pytest.raises(harness.errors.ConfigurationError, match="workspace"):
        harness.estimate(RELU, device="npu01", workspace=value)


@pytest.mark.parametrize("models", [RELU.graph, [RELU.graph], bytearray(b"x"), {"a": RELU}])
def test_what_is_no_network_is_refused(models: Any) -> None:
    """A graph without its model, and collections that are no lists, are usage errors."""
    with pytest.raises(harness.errors.UsageError, match="is not a network"):
        harness.estimate(models, device="npu01")


def test_a_search_space_is_one_network() -> None:
    """A list is no super-network, whatever it holds."""
    for models in ([], [RELU, RELU]):
        with pytest.raises(harness.errors.UsageError, match="list is not a network"):
            harness.SearchSpace.read(models)  # type: ignore[arg-type]


def test_a_name_of_any_length_is_an_unknown_device() -> None:
    """A name that no file system takes is unknown, too."""
    with pytest.raises(harness.errors.UnknownDevice):
        harness.estimate(RELU, device="x" * 500, dims={"rows": 1})


@pytest.mark.usefixtures("devices_in_process")
def test_numbers_of_numpy_are_numbers() -> None:
    """Sizes, counts, seeds and times from arrays measure and estimate what plain numbers do."""
    sizes, two = {"rows": np.int64(1)}, np.int64(2)
    for given in ({"dims": sizes}, {"batch": two}):
        measured = harness.profile(RELU, device="null01", seed=np.int64(3), policy=FIVE_RUNS, **given)
        harness.build_lut("null01", batch=given.get("batch"))
        (found,) = harness.estimate(RELU, device=np.str_("null01"), **given)
        plain = {"dims": {"rows": 1}} if "dims" in given else {"batch": 2}
        again = harness.profile(RELU, device="null01", seed=3, policy=FIVE_RUNS, wait_s=np.float64(0), **plain)
        assert (measured.probes, measured.samples) == (again.probes, again.samples)
        assert found == harness.estimate(RELU, device="null01", **plain)[0]
    (timed,) = harness.benchmark(RELU, device="null01", dims=sizes, runs=np.int64(5), processes=two).networks
    assert [len(samples) for samples in timed.processes] == [5, 5]


@pytest.mark.parametrize("given", [{}, {"cached_weights": False}, {"tile": [4, np.int64(8)]}])
def test_options_of_the_compiler_are_taken(given: dict[str, Any]) -> None:
    """CompilerOptions with values that their fields allow run, with lists and numbers of numpy as well."""
    options = harness.CompilerOptions(**given)
    assert CALLS["emulate"](compiler=options, values=False).cycles > 0


def test_numbers_of_numpy_are_options_of_the_compiler() -> None:
    """A block length of numpy does what the same plain number does, and differs from another length."""
    graph = """
        <ir_version: 8, opset_import: ["" : 17]>
        small (float[1, 8, 32, 32] x) => (float[1, 8, 32, 32] y) <float[8, 8, 5, 5] w = {WEIGHTS}>
        { y = Conv <pads = [2, 2, 2, 2]> (x, w) }
    """
    model = onnx.parser.parse_model(graph.replace("WEIGHTS", ", ".join(["1"] * 1600)))
    cycles = [
        harness.emulate(
            model, values=False, compiler=harness.CompilerOptions(conv_algorithm="odd-dft", dft_block=block)
        ).cycles
        for block in (np.int64(9), 9, 11)
    ]
    assert cycles[0] == cycles[1] != cycles[2]


def test_wrong_options_of_the_compiler_are_shown_by_their_name() -> None:
    """The error shows the fields that were given, under the name that the caller used."""
    with pytest.raises(harness.errors.UsageError, match=r"^compiler is CompilerOptions\(chains='x'\)\. It must be "):
        CALLS["emulate"](compiler=harness.CompilerOptions(chains="x"))  # type: ignore[arg-type]


@pytest.mark.usefixtures("devices_in_process")
def test_a_refused_seed_leaves_the_journal_whole() -> None:
    """After a seed that the journal cannot hold, the workspace measures and builds as before."""
    with pytest.raises(harness.errors.UsageError, match=r"^seed is -1"):
        harness.profile(RELU, device="null01", dims={"rows": 1}, policy=FIVE_RUNS, seed=-1)
    harness.profile(RELU, device="null01", dims={"rows": 1}, policy=FIVE_RUNS)
    assert harness.build_lut("null01").entries


def test_a_workspace_stays_when_the_folder_changes(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A workspace is made from text or a path, and a relative one is that of the folder in which it was made."""
    (folder / "lab").mkdir()
    workspace = harness.Workspace("lab")  # type: ignore[arg-type]
    monkeypatch.chdir("/")
    assert workspace.journal == folder / "lab" / ".harness" / "journal.sqlite"
