"""The command line and its reference page."""

import functools
import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

DOCS = Path(__file__).resolve().parents[2] / "docs"


@pytest.fixture(scope="module")
def generator() -> ModuleType:
    """docs/generate_cli.py as a module."""
    spec = importlib.util.spec_from_file_location("generate_cli", DOCS / "generate_cli.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["generate_cli"] = module
    spec.loader.exec_module(module)
    module.help_of = functools.cache(module.help_of)  # type: ignore[attr-defined]
    return module


def test_page_is_what_the_help_texts_say(generator: ModuleType) -> None:
    """docs/cli.md is exactly what `make docs` writes."""
    assert generator.PAGE.read_text(encoding="utf-8") == generator.page()


def test_every_command_is_documented(generator: ModuleType) -> None:
    """Each command and subcommand of the program has a section on the page."""
    from harness.cli.app import program

    app = program()
    commands = {(info.name,) for info in app.registered_commands}
    for group in app.registered_groups:
        assert group.typer_instance is not None
        commands |= {
            (group.name, info.name or getattr(info.callback, "__name__", ""))
            for info in group.typer_instance.registered_commands
        }
    assert commands == set(generator.commands()) - {()}


def test_every_command_gives_an_example(generator: ModuleType) -> None:
    """Each help text but the overview and those of groups shows the command as it can be typed."""
    for command in generator.commands():
        text = " ".join(generator.help_of(command).split())
        is_group = "Commands:" in text
        assert not command or f"Example: harness {' '.join(command[: 1 if is_group else None])}" in text, command
