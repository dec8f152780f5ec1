"""The sizes of folders, modules and functions that docs/contributing.md allows."""

import ast
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from device_agents.sources import HOST_ONLY, read_sources
from harness import errors

ROOT = Path(__file__).resolve().parents[1]
SOURCE = ("harness", "device_agents")
MODULES_OF_A_FOLDER, LINES_OF_A_MODULE, LINES_OF_A_FUNCTION, PARAMETERS = 22, 400, 60, 8
Function = ast.FunctionDef | ast.AsyncFunctionDef


def _modules(*folders: str) -> Iterator[Path]:
    return (path for folder in folders for path in sorted((ROOT / folder).rglob("*.py")))


def _has_reason(function: Function, lines: list[str]) -> bool:
    """Return whether a comment stands right above a function, or first in it, after the docstring."""
    first = min([function.lineno, *(one.lineno for one in function.decorator_list)])
    body = function.body[ast.get_docstring(function) is not None :]
    return any(lines[at - 2].lstrip().startswith("#") for at in (first, body[0].lineno))


def _parameters(function: Function) -> int:
    named = function.args
    own = [*named.posonlyargs, *named.args, *named.kwonlyargs]
    return sum(one.arg not in ("self", "cls") for one in own)


def test_folders_hold_about_twenty_modules() -> None:
    """A folder with more modules than a reader can look over at once has packages instead."""
    counts = Counter(path.parent.relative_to(ROOT) for path in _modules(*SOURCE, "tests", "benchmarks", "fuzz"))
    assert len(counts) > 50
    assert {str(folder): count for folder, count in counts.items() if count > MODULES_OF_A_FOLDER} == {}


def test_modules_have_at_most_400_lines() -> None:
    """A longer module holds two things."""
    lengths = {path.relative_to(ROOT): len(path.read_text("utf-8").splitlines()) for path in _modules(*SOURCE)}
    assert {str(path): length for path, length in lengths.items() if length > LINES_OF_A_MODULE} == {}


def test_long_functions_and_those_with_many_parameters_have_a_reason() -> None:
    """A comment says why a function is longer than 60 lines, or why one outside the command line has 9 parameters."""
    unexplained = []
    for path in _modules(*SOURCE):
        text = path.read_text("utf-8")
        lines, is_command = text.splitlines(), path.is_relative_to(ROOT / "harness" / "cli")
        for node in ast.walk(ast.parse(text)):
            if not isinstance(node, Function):
                continue
            is_long = (node.end_lineno or node.lineno) - node.lineno >= LINES_OF_A_FUNCTION
            has_many = not is_command and _parameters(node) > PARAMETERS
            if (is_long or has_many) and not _has_reason(node, lines):
                unexplained.append(f"{path.relative_to(ROOT)}:{node.lineno} {node.name}")
    assert unexplained == []


def test_one_module_of_the_host_imports_the_runtime() -> None:
    """Only `host_runtime`, which switches off the runtime's telemetry before, imports ONNX Runtime."""
    found = {path for path in _modules("harness") if re.search(r"(?:import|from) onnxruntime\b", path.read_text())}
    assert found == {ROOT / "harness" / "host_runtime.py"}


def test_a_program_starts_when_all_of_its_module_is_defined() -> None:
    """What stands behind the start of a program does not exist while it runs."""
    starts = {
        path: [at for at, one in enumerate(body) if isinstance(one, ast.If) and "__main__" in ast.unparse(one.test)]
        for path in _modules(*SOURCE, "benchmarks", "fuzz")
        if (body := ast.parse(path.read_text()).body)
    }
    assert any(starts.values())
    assert [path for path, ats in starts.items() if ats and ats != [len(ast.parse(path.read_text()).body) - 1]] == []


def test_modules_of_tests_have_names_of_their_own() -> None:
    """pytest imports all of them side by side, and refuses the second one of a name."""
    counts = Counter(path.name for path in _modules("tests") if path.name.startswith("test_"))
    assert len(counts) > 100
    assert {name: count for name, count in counts.items() if count > 1} == {}


def _imported(source: bytes) -> Iterator[str]:
    """Yield the modules that a module imports anywhere, and the names that it takes from them."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (one.name for one in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from (f"{node.module}.{one.name}" for one in node.names)


def test_what_is_sent_to_a_device_imports_nothing_that_only_the_host_runs() -> None:
    """No module that is sent imports one that is not: on the device it would be missing."""
    kept = tuple(f"device_agents.{part.removesuffix('.py').replace('/', '.')}." for part in HOST_ONLY)
    sent = {name: content for name, content in read_sources(without=HOST_ONLY) if name.endswith(".py")}
    assert {"worker.py", "emulated_npu/timing/simulation.py"} < sent.keys()
    found = {(name, one) for name, content in sent.items() for one in _imported(content)}
    assert [(name, one) for name, one in sorted(found) if f"{one}.".startswith(kept)] == []


def test_what_the_system_refuses_has_a_next_step() -> None:
    """An error whose reason is one of the system says what to do, by itself or by its class."""
    without = []
    for path in _modules("harness"):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Name)):
                continue
            words = {one.arg: ast.unparse(one.value) for one in node.keywords}
            kind = getattr(errors, node.func.id, None)
            if words.get("why", "").startswith("reason_of(") and "next_step" not in words and kind:
                without += [] if kind.default_step else [f"{path.relative_to(ROOT)}:{node.lineno}"]
    assert without == []
