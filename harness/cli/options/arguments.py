"""Arguments and options that several commands share, and the parsers of their texts."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from harness.cli.options.result_files import file_option, page_option
from harness.errors import UsageError
from harness.settings import DEFAULT_DEVICE
from harness.text import duration_s, printable

if TYPE_CHECKING:
    from harness.device.inventory import Device
    from harness.device.variant import Variant
    from harness.lut.table import Lut
    from harness.network.keyed_network import KeyedNetwork
    from harness.network.network_list import NetworksRead
    from harness.workspace import Workspace

_words: tuple[str, ...] = ()


def command_group(help: str) -> typer.Typer:
    """Return a group of commands, such as `harness lut`."""
    return typer.Typer(no_args_is_help=True, rich_markup_mode=None, help=help)


def complete_device(incomplete: str) -> list[str]:
    """Return the names of devices that begin with the text after the last comma, for the shell's completion."""
    from harness.device.inventory import load_inventory
    from harness.workspace import find_workspace

    before, comma, last = incomplete.rpartition(",")
    names = load_inventory(find_workspace(None).devices)
    return [f"{before}{comma}{name}" for name in names if name.startswith(last)]


def complete_table(incomplete: str) -> list[str]:
    """Return the names of tables, including published ones, that begin with a text, for the shell's completion."""
    from harness.lut.table_choice import PUBLISHED, table_folders
    from harness.workspace import find_workspace

    folders = (*table_folders(find_workspace(None).lut), *table_folders(PUBLISHED))
    names = dict.fromkeys(f"{one.parent.name}/{one.name}" for one in folders)
    return [name for name in names if name.startswith(incomplete)]


def complete_side(incomplete: str) -> list[str]:
    """Return the names of tables and of devices with one that begin with a text, for the shell's completion."""
    tables = complete_table(incomplete)
    devices = dict.fromkeys(name.partition("/")[0] for name in complete_table(""))
    return [*(name for name in devices if name.startswith(incomplete)), *tables]


def complete_model(incomplete: str) -> list[str]:
    """Return the built-in networks, ONNX files and folders that begin with a text, for the shell's completion."""
    from harness.network.model_references import BUILTIN_NAMES, BUILTIN_PREFIX

    names = [f"{BUILTIN_PREFIX}{name}" for name in BUILTIN_NAMES]
    folder, _, start = incomplete.rpartition("/")
    base = Path(f"{folder}/" if folder or incomplete.startswith("/") else ".")
    before = f"{folder}/" if "/" in incomplete else ""
    held = sorted(base.iterdir()) if base.is_dir() else []
    files = [f"{before}{one.name}" for one in held if one.suffix == ".onnx" and one.name.startswith(start)]
    folders = [f"{before}{one.name}/" for one in held if one.is_dir() and one.name.startswith(start or "\0")]
    return [name for name in names if name.startswith(incomplete)] + files + folders


def complete_preset(incomplete: str) -> list[str]:
    """Return the names of built-in machines that begin with a text, for the shell's completion."""
    from harness.npu.npu_options import preset_names

    return [name for name in preset_names() if name.startswith(incomplete)]


def device_option(help: str, metavar: str = "NAME") -> Any:
    """Return the option --device."""
    return typer.Option("--device", "-d", metavar=metavar, help=help, autocompletion=complete_device)


def models_argument(default: str = "") -> Any:
    """Return the argument of networks; `default` says which ones are used if it may be omitted."""
    return typer.Argument(metavar="MODEL.onnx", help=f"{MODELS_HELP}{default}", autocompletion=complete_model)


_DEFAULT = f"(default: the device set in harness.toml, else {DEFAULT_DEVICE})"
MODELS_HELP = "ONNX files, or builtin:NAME (builtin:resnet50, builtin:mobilenetv2, …)."
Model = Annotated[
    str,
    typer.Argument(
        metavar="MODEL.onnx", help="An ONNX file, or builtin:NAME (builtin:resnet50, …).", autocompletion=complete_model
    ),
]
ModelOrProgram = Annotated[
    str,
    typer.Argument(
        metavar="MODEL.onnx|PROGRAM",
        help="An ONNX file, builtin:NAME, or a program file of `npu compile -o`.",
        autocompletion=complete_model,
    ),
]
HtmlFile = Annotated[Path | None, page_option("--html", "Write the result to this file as an HTML page.")]
CsvFile = Annotated[Path | None, file_option("--csv", help="Write the rows to this CSV file.")]
Models = Annotated[list[str], models_argument()]
DeviceName = Annotated[str | None, device_option(f"Device to use; `harness devices list` lists them {_DEFAULT}.")]
DeviceNames = Annotated[str | None, device_option(f"Devices to use {_DEFAULT}.", "NAME[,NAME…]")]
Groups = Annotated[
    list[str] | None,
    typer.Option("--group", metavar="GROUP", help="Use all devices of this group in devices.toml; may be repeated."),
]
Everything = Annotated[
    bool, typer.Option("--all", help="Use all devices in devices.toml, or the built-in devices if it lists none.")
]
Wait = Annotated[
    str | None,
    typer.Option("--wait", metavar="TIME", help="Wait up to this time for a device in use, such as 90s, 10m or 2h."),
]
OptionalDevice = Annotated[str | None, device_option(f"Use the newest table of this device {_DEFAULT}.")]
LutFolder = Annotated[
    Path | None,
    typer.Option(
        "--lut",
        metavar="DIR",
        help="Folder or name of the table to use (default: the newest table of --device).",
        autocompletion=complete_table,
    ),
]


@dataclass(frozen=True)
class DeviceChoice:
    """The devices that a command uses, and how long it waits for one in use."""

    device: DeviceNames = None
    group: Groups = None
    all: Everything = False
    wait: Wait = None

    def select(self, workspace: Workspace) -> tuple[Device, ...]:
        """Return the devices, by default that of the workspace; raises UsageError and ConfigurationError."""
        from harness.device.inventory import load_inventory
        from harness.fleet.device_selection import select

        is_given = self.device is not None or self.group or self.all
        names = parse_names(self.device if is_given else workspace.default_device)
        inventory = load_inventory(workspace.devices)
        return tuple(select(inventory, names=names, groups=self.group or (), everything=self.all))


@dataclass(frozen=True)
class TableChoice:
    """A table by its folder, or the newest one of a device."""

    device: OptionalDevice = None
    lut: LutFolder = None


WorkspaceFolder = Annotated[
    Path | None,
    typer.Option(
        "--workspace",
        metavar="DIR",
        help="Folder of journal, tables and reports (default: the current one, or a parent with harness.toml).",
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object instead of text.")]
Dims = Annotated[
    list[str] | None,
    typer.Option(
        "--dim",
        metavar="NAME=N",
        help="Value of a symbolic dimension, of an axis (INPUT.AXIS=N), or of a scalar integer or Boolean input"
        " (1 or 0); may be repeated.",
    ),
]
Activations = Annotated[
    list[str] | None,
    typer.Option(
        "--activation",
        metavar="NAME=FILE.csv",
        help="Compute the activation of this node, or all of this operator, from a table of breakpoints and values;"
        " may be repeated.",
    ),
]
Strict = Annotated[bool, typer.Option("--strict", help="Fail immediately if any network cannot be used.")]
Batch = Annotated[
    int | None,
    typer.Option(
        "--batch",
        metavar="N",
        min=1,
        max=65536,
        help="Set the leading (batch) dimension of all inputs, even if the model fixes it.",
    ),
]
Threads = Annotated[
    int | None,
    typer.Option("--threads", metavar="N", min=1, max=1024, help="Number of threads; overrides devices.toml."),
]


@dataclass(frozen=True)
class NetworkOptions:
    """The dimensions and activations of a network that the emulated NPU compiles."""

    dim: Dims = None
    activation: Activations = None

    @property
    def read(self) -> tuple[dict[str, int], Sequence[str]]:
        """The values of dimensions, and the tables of activations; raises UsageError."""
        return parse_dims(self.dim), self.activation or ()


@dataclass(frozen=True)
class ReadingOptions:
    """How a command reads its networks, and the threads that it concerns."""

    dim: Dims = None
    batch: Batch = None
    threads: Threads = None
    strict: Strict = False

    @property
    def dims(self) -> dict[str, int]:
        """The values of symbolic dimensions; raises UsageError."""
        return parse_dims(self.dim)

    def networks(
        self, models: Sequence[str], table: Lut, dims: Mapping[str, int] | None = None
    ) -> NetworksRead[KeyedNetwork]:
        """Read networks and cut them by the rules of a table, with progress on stderr."""
        from harness.cli.terminal.output import note
        from harness.cli.terminal.progress import show_count
        from harness.network.keyed_reading import read_keyed_networks

        with show_count("reading networks", len(models)) as progress:
            return read_keyed_networks(
                models,
                table.rules,
                dims or self.dims,
                batch=self.batch,
                strict=self.strict,
                note=note,
                progress=progress,
            )

    @property
    def keywords(self) -> dict[str, Any]:
        """The options as functions of `harness` take them."""
        return {"dims": self.dims, "batch": self.batch, "threads": self.threads, "strict": self.strict}

    @property
    def variant(self) -> Variant:
        """The batch and the threads, which select a table."""
        from harness.device.variant import Variant

        return Variant(self.batch, self.threads)


Budget = Annotated[
    str | None,
    typer.Option("--budget", metavar="TIME", help="Limit of the time on the device, such as 90s, 10m or 2h."),
]
TimeLimit = Annotated[
    str | None,
    typer.Option(
        "--time-limit",
        metavar="TIME",
        help="Limit of the wall time on a device, golden probes and retries included; each campaign has a default.",
    ),
]
_NUMBER = re.compile(r"[0-9]{1,12}\Z")


def parse_dims(words: Sequence[str] | None) -> dict[str, int]:
    """Return `NAME=N` words as a mapping; raises UsageError."""
    dims: dict[str, int] = {}
    for word in words or ():
        name, separator, value = word.rpartition("=")
        if not separator or not name or not _NUMBER.match(value) or int(value) >= 1 << 31:
            raise UsageError(
                f"--dim {word[:80]} is not NAME=N",
                why="N is a whole number from 0 to 2147483647",
                next_step="Write --dim batch=1",
            )
        if name in dims:
            raise UsageError(f"--dim {name[:80]} is given twice")
        dims[name] = int(value)
    return dims


def parse_names(text: str | None) -> tuple[str, ...]:
    """Return the names between commas, each once."""
    return () if text is None else tuple(dict.fromkeys(text.split(",")))


def parse_counts(flag: str, text: str | None, most: int) -> tuple[int, ...]:
    """Return the whole numbers between commas, each once; raises UsageError."""
    words = parse_names(text)
    if not all(_NUMBER.match(word) and 1 <= int(word) <= most for word in words):
        what = f"{flag} {(text or '')[:40]} is not a list of numbers from 1 to {most}"
        raise UsageError(what, next_step=f"Write {flag} 1,2,4")
    return tuple(map(int, words))


def parse_budget(text: str | None, flag: str = "--budget") -> float | None:
    """Return a duration in seconds; raises UsageError."""
    if text is None:
        return None
    try:
        return duration_s(text)
    except ValueError as error:
        raise UsageError(f"{flag} {text[:40]} {error}") from error


def parse_wait(text: str | None) -> float | None:
    """Return a duration in seconds; raises UsageError."""
    return parse_budget(text, "--wait")


def parse_runs(text: str) -> int | None:
    """Return None for `auto`, else a positive number of runs; raises UsageError."""
    if text == "auto":
        return None
    if not _NUMBER.match(text) or not 1 <= int(text) <= 100_000:
        raise UsageError(f"--runs {text[:40]} is neither `auto` nor a number from 1 to 100000")
    return int(text)


def remember(arguments: Sequence[str]) -> None:
    """Keep the arguments of the program for `command_words`."""
    global _words
    _words = tuple(arguments)


def command_words() -> tuple[str, ...]:
    """Return the words of the command that runs."""
    return ("harness", *_words)


def command_line() -> str:
    """Return the command that runs as a shell reads it."""
    return shlex.join(map(printable, command_words()))
