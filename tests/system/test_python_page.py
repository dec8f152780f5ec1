"""The pages about Python: examples and notebook run, and the reference documents exactly what the package exports."""

import importlib.util
import inspect
import json
import re
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import harness

DOCS = Path(__file__).resolve().parents[2] / "docs"
PAGE = (DOCS / "python.md").read_text()


def docs_module(name: str) -> ModuleType:
    """A program of docs/ as a module."""
    spec = importlib.util.spec_from_file_location(name, DOCS / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_example_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """The code of the page, pasted into an empty folder, measures and estimates a network, and lists devices."""
    monkeypatch.chdir(tmp_path)
    for code in re.findall(r"```python\n(.*?)```", PAGE, flags=re.DOTALL):
        exec(compile(code, "python.md", "exec"), {"harness": harness})  # noqa: S102 - our own page
    printed = capsys.readouterr().out
    (error,) = re.findall(r"error ([+-][0-9.]+) ?%", printed)
    assert abs(float(error)) < 10
    assert "tiny: " in printed and "npu01 emulated-npu" in printed


def test_the_reference_is_what_the_docstrings_say() -> None:
    """docs/api.md is exactly what `make docs` writes, and has a section for every exported name."""
    generator = docs_module("generate_api")
    page = generator.PAGE.read_text(encoding="utf-8")
    assert page == generator.page()
    assert set(re.findall(r"^### `(\w+)`", page, flags=re.MULTILINE)) == set(harness.__all__)


def test_every_exported_name_has_a_docstring() -> None:
    """Each function and class of the reference, and each function and property in it, says what it is or does."""
    generator = docs_module("generate_api")
    values = {name: getattr(harness, name) for name in harness.__all__ if name != "__version__"}
    assert not [name for name, value in values.items() if not inspect.getdoc(value)]
    kinds = [value for value in values.values() if inspect.isclass(value)]
    assert sum(len(list(generator._members(kind))) for kind in kinds) > 50


def test_the_notebook_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every cell of docs/tutorial.ipynb runs in an empty folder, and displays what the stored notebook displays."""
    runner = docs_module("run_notebook")
    stored = json.loads(runner.NOTEBOOK.read_text(encoding="utf-8"))
    monkeypatch.chdir(tmp_path)
    found = runner.run(json.loads(json.dumps(stored)))
    assert _kinds(found) == _kinds(stored)
    shown = "".join("".join(text) for data in _displays(found) for text in data.values())
    assert shown.count("<table>") == 4 and shown.count("<svg") == 1


def _displays(notebook: dict[str, Any]) -> list[dict[str, list[str]]]:
    cells = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    return [output["data"] for cell in cells for output in cell["outputs"] if "data" in output]


def _kinds(notebook: dict[str, Any]) -> list[tuple[str, ...]]:
    """The outputs of each cell by their kinds: figures differ from run to run."""
    outputs = [output for cell in notebook["cells"] for output in cell.get("outputs", ())]
    return [(one["output_type"], *sorted(one.get("data", {}))) for one in outputs]


def test_exported_names_are_there_and_no_other() -> None:
    """Every exported name can be imported, `dir` lists it, and another name is an AttributeError."""
    assert all(hasattr(harness, name) and name in dir(harness) for name in harness.__all__)
    with pytest.raises(AttributeError, match="nothing"):
        harness.nothing  # noqa: B018 - the access is what is tested
