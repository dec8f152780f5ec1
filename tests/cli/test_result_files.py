"""Files that commands write: never an input of the same command, and never two results in one file."""

import os
import re
import tempfile
import typing
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated, Any, get_args, get_type_hints

import click
import pytest
import typer
from command_line import Harness
from processes import OTHER, as_other

from harness.cli.app import program
from harness.cli.options.result_files import check_results, result_file, writable_page
from harness.errors import UsageError
from harness.files import may_hold

SPACE = "--space s.onnx --candidates c.npy"


@pytest.fixture
def harness(tmp_path: Path) -> Harness:
    """A workspace with files that no command can read; `link.csv` is a link to `d.onnx`."""
    found = Harness.in_folder(tmp_path)
    for name in ("d.onnx", "s.onnx", "c.npy", "n.npy", "t.csv", "m.html"):
        (found.workspace / name).write_text(name)
    (found.workspace / "link.csv").symlink_to("d.onnx")
    return found


def test_options_of_search_spaces_need_one(harness: Harness) -> None:
    """Networks with an engine are refused for the option, and not because there were no networks."""
    found = harness("estimate", "d.onnx", "--engine", "dask=tcp://127.0.0.1:1").assert_refused(2)
    assert "only for search spaces" in found.stderr and "nothing to estimate" not in found.stderr


@pytest.mark.parametrize(
    "command",
    [
        "estimate d.onnx --csv d.onnx",
        "estimate --csv ./d.onnx s.onnx d.onnx",
        "estimate d.onnx --csv link.csv",
        "estimate m.html --html m.html",
        f"estimate {SPACE} -o s.onnx",
        f"estimate {SPACE} -o c.npy",
        f"estimate {SPACE} --scores n.npy -o n.npy",
        "benchmark d.onnx --csv=d.onnx",
        "trace d.onnx -o d.onnx",
        "npu compile s.onnx --activation Sigmoid=t.csv -o t.csv",
        "npu assemble d.onnx --base s.onnx -o s.onnx",
        "nightly run --plan m.html --html m.html",
    ],
)
def test_an_input_is_never_a_result(command: str, harness: Harness) -> None:
    """A result in place of an input is refused with exit 2 before anything is read, and every file stays."""
    before = harness.state()
    harness(*command.split()).assert_refused(2, mentions=("is an input", "next: Write the result to another file"))
    assert harness.state() == before


@pytest.mark.parametrize(
    "command",
    [
        "estimate d.onnx --html new.html --csv new.html",
        "npu run d.onnx --csv m.html --html ./m.html",
        "npu compile s.onnx -o new --image new",
    ],
)
def test_two_results_are_never_one_file(command: str, harness: Harness) -> None:
    """Two results with one name are refused with exit 2, whether the file exists or not."""
    before = harness.state()
    harness(*command.split()).assert_refused(2, mentions=("is given for two results", "next: Name another file"))
    assert harness.state() == before


def test_the_default_plan_is_an_input(tmp_path: Path) -> None:
    """An input that no word names is compared, too; devices such as /dev/null take any number of results."""
    (tmp_path / "plan").touch()
    with pytest.raises(UsageError, match="is an input"):
        check_results([tmp_path / "plan"], [tmp_path / "plan"])
    check_results([Path("/dev/null"), Path("/dev/null")], [Path("/dev/null")])


def test_missing_folders_are_refused_before_any_work(harness: Harness) -> None:
    """A result in a folder that does not exist is refused before the network is read."""
    harness("estimate", "none.onnx", "--csv", "none/x").assert_refused(3, mentions=("none/x cannot be written",))


def test_folders_that_may_not_be_written_are_refused_before_any_work(
    harness: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A result in a folder that this user may not write to is refused before the network is read."""
    monkeypatch.setattr(os, "access", lambda *_: False)  # the user root may write anywhere
    harness("estimate", "none.onnx", "--csv", "x.csv").assert_refused(3, mentions=("x.csv cannot be written",))


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_folders_that_may_not_be_entered_are_refused_before_any_work() -> None:
    """A result in a folder that may not be entered or written to is refused, but not a link to a folder that may."""
    context, option = click.Context(click.Command("x")), click.Option(["--csv"])
    with tempfile.TemporaryDirectory(prefix="harness-test-results-", dir="/tmp") as name:
        place = Path(name)
        place.chmod(0o755)
        for folder, mode in (("locked", 0o600), ("fixed", 0o755), ("own", 0o755)):
            (place / folder).mkdir(mode=mode)
        (place / "locked" / "below").mkdir()
        (place / "fixed" / "link.csv").symlink_to(place / "own" / "x.csv")
        os.chown(place / "locked", OTHER, OTHER)
        os.chown(place / "own", OTHER, OTHER)

        def given(file: str) -> str:
            return as_other(lambda: result_file(context, option, place / file))  # type: ignore[arg-type]

        for file in ("locked/x.csv", "locked/below/x.csv", "fixed/x.csv"):
            assert given(file).startswith(f"ConfigurationError: {place / file} cannot be written")
        assert given("fixed/link.csv") == repr(place / "fixed" / "link.csv")
        assert as_other(lambda: may_hold(place / "locked" / "below" / "new")) == "False"


def test_every_file_that_a_command_writes_is_checked() -> None:
    """Each option whose help says that a file is written has the check of results."""
    written = [(name, info) for name, info in _options(program()) if info.metavar.startswith("FILE") and _writes(info)]
    assert len(written) > 15
    assert [name for name, info in written if info.callback not in (result_file, writable_page)] == []


def _writes(info: Any) -> bool:
    return re.match("(also |file to )?write", info.help, re.IGNORECASE) is not None


def _options(app: typer.Typer) -> Iterator[tuple[str, Any]]:
    for command in app.registered_commands:
        callback = typing.cast("Callable[..., None]", command.callback)
        for name, hint in get_type_hints(callback, include_extras=True).items():
            if typing.get_origin(hint) is Annotated:
                found = [one for one in get_args(hint)[1:] if getattr(one, "metavar", None) and one.help]
                yield from ((f"{callback.__name__} {name}", one) for one in found)
    for group in app.registered_groups:
        if group.typer_instance is not None:
            yield from _options(group.typer_instance)
