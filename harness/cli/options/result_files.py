"""Files that commands write: checked before any work is done, and never an input of the same command."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import typer
from typer.core import TyperCommand

from harness.errors import ConfigurationError, UsageError
from harness.files import may_hold

_META = "harness.results"


def result_file(context: typer.Context, option: typer.CallbackParam, path: Path | None) -> Path | None:
    """Return the path of a result, as the callback of its option; raises ConfigurationError without its folder."""
    if path is not None:
        folder = Path(os.path.realpath(path)).parent  # the file at the end of a link is replaced, not the link
        is_special = os.path.exists(path) and not os.path.isfile(path)  # a pipe or a device is not replaced
        if not (is_special or os.path.isdir(folder)):
            what, step = f"{path} cannot be written", "Name a file in a folder that exists"
            raise ConfigurationError(what, why="There is no such folder, or this user may not enter it", next_step=step)
        if not (is_special or may_hold(folder)):
            what, step = f"{path} cannot be written", "Name a file in a folder that you may write to"
            raise ConfigurationError(what, why="This user may not write to the folder", next_step=step)
        context.meta.setdefault(_META, {})[option.name] = path
    return path


def writable_page(context: typer.Context, option: typer.CallbackParam, path: Path | None) -> Path | None:
    """As `result_file`, for an HTML page; raises UsageError for another extension."""
    if path is not None and path.suffix.lower() not in (".html", ".htm"):
        flag = option.opts[0]
        why, step = "The result is an HTML page", f"Write {flag} FILE.html"
        raise UsageError(f"{flag} {path} does not end in .html", why=why, next_step=step)
    return result_file(context, option, path)


def file_option(*flags: str, help: str, metavar: str = "FILE") -> Any:
    """Return the option of a file that the command writes."""
    return typer.Option(*flags, metavar=metavar, help=help, callback=result_file)


def page_option(flag: str, help: str) -> Any:
    """Return the option of an HTML page that the command writes."""
    return typer.Option(flag, metavar="FILE.html", help=help, callback=writable_page)


class ResultCommand(TyperCommand):
    """A command that is refused if a result would replace one of its inputs, or another result.

    Its help lists groups of options under headings of their own.
    """

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write the arguments, the options without a heading, and then each group."""
        sections: dict[str, list[tuple[str, str]]] = {"Arguments": [], "Options": []}
        for parameter in self.get_params(ctx):
            kind = "Arguments" if parameter.param_type_name == "argument" else "Options"
            heading = getattr(parameter, "rich_help_panel", None) or kind
            if (record := parameter.get_help_record(ctx)) is not None:
                sections.setdefault(heading, []).append(record)
        for heading, records in sections.items():
            if records:
                with formatter.section(heading):
                    formatter.write_dl(records)

    def invoke(self, ctx: Any) -> Any:
        """Compare the files of all arguments and options, then run the command."""
        results: dict[str, Path] = ctx.meta.get(_META, {})
        given = (value for name, value in ctx.params.items() if name not in results)
        check_results(tuple(results.values()), (path for value in given for path in _paths(value)))
        return super().invoke(ctx)


def check_results(results: Sequence[Path], inputs: Iterable[Path]) -> None:
    """Raise UsageError if a result is an input or is given twice; pipes and devices may be."""
    if not results:
        return
    files = [path for path in results if path.is_file() or not path.exists()]
    read = tuple(inputs)
    for at, path in enumerate(files):
        if any(_is_same(path, one) for one in read):
            why = "The result would replace a file that the command reads"
            raise UsageError(f"{path} is an input", why=why, next_step="Write the result to another file")
        if any(_is_same(path, one) for one in files[:at]):
            why = "The second result would replace the first one"
            raise UsageError(f"{path} is given for two results", why=why, next_step="Name another file for one of them")


def _is_same(one: Path, other: Path) -> bool:
    try:
        return os.path.samefile(one, other)
    except (OSError, ValueError):  # one of them does not exist
        return os.path.realpath(one) == os.path.realpath(other)


def _paths(value: object) -> Iterator[Path]:
    """Yield what may be the path of an input: a word, or what follows the first `=` in it, as in NAME=FILE."""
    if isinstance(value, (list, tuple)):
        for one in value:
            yield from _paths(one)
    elif isinstance(value, (str, Path)):
        text = str(value)
        yield from (Path(one) for one in (text, text.partition("=")[2]) if one and "\0" not in one)
