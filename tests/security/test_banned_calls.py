"""Banned calls: each fails the lint, and the program has none, not even with a note that permits it."""

import ast
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = ("harness", "device_agents", "benchmarks", "docs", "fuzz")
BANNED = {
    "pickle": ("import pickle", "TID251"),
    "pickle_from": ("from pickle import loads", "TID251"),
    "cloudpickle": ("import cloudpickle", "TID251"),
    "dill": ("import dill", "TID251"),
    "joblib": ("import joblib", "TID251"),
    "shelve": ("import shelve", "TID251"),
    "marshal": ("import marshal", "TID251"),
    "yaml": ("import yaml", "TID251"),
    "os_system": ("import os\n\nos.system('x')", "TID251"),
    "os_popen": ("import os\n\nos.popen('x')", "TID251"),
    "getoutput": ("import subprocess\n\nsubprocess.getoutput('x')", "TID251"),
    "async_shell": ("import asyncio\n\nasyncio.create_subprocess_shell('x')", "TID251"),
    "shell_true": ("import subprocess\n\nsubprocess.run('x', shell=True)", "S602"),
    "shell_wrapped": ("def wrap(command):\n    return run(command, shell=True)", "S604"),
    "eval": ("eval(input())", "S307"),
    "exec": ("exec(input())", "S102"),
    "auto_add": ("import paramiko\n\nparamiko.AutoAddPolicy()", "TID251"),
    "auto_add_set": (
        "import paramiko\n\nclient = paramiko.SSHClient()\nclient.set_missing_host_key_policy(paramiko.AutoAddPolicy)",
        "S507",
    ),
    "warning_policy": ("import paramiko\n\nparamiko.WarningPolicy()", "TID251"),
    "mktemp": ("import tempfile\n\ntempfile.mktemp()", "S306"),
    "password": ("connect(password='hunter2')", "S106"),
    "tarfile": ("import tarfile\n\ntarfile.open('x').extractall()", "S202"),
    "certificate": ("import ssl\n\nssl._create_unverified_context()", "S323"),
}
"""Snippets with the rule that must refuse them."""
_SUSPECTS = re.compile(r"allow_pickle|\b__import__\b|(?<!\.)\bcompile\(")
CODES = sorted({code for _, code in BANNED.values()} | {"S301", "S302", "S506", "S605"})


def ruff(*words: str | Path) -> list[dict[str, str]]:
    """Return what ruff finds with the project's settings."""
    command = [sys.executable, "-m", "ruff", "check", "--no-cache", "--output-format", "json"]
    command += ["--config", str(ROOT / "pyproject.toml"), *map(str, words)]
    done = subprocess.run(command, cwd=ROOT, stdin=subprocess.DEVNULL, capture_output=True, timeout=600, check=False)
    assert done.returncode in (0, 1), done.stderr.decode()
    found: list[dict[str, str]] = json.loads(done.stdout)
    return found


@pytest.fixture(scope="module")
def refused(tmp_path_factory: pytest.TempPathFactory) -> dict[str, set[str]]:
    """Return the rules that each snippet breaks."""
    folder = tmp_path_factory.mktemp("snippets")
    for name, (text, _) in BANNED.items():
        (folder / f"{name}.py").write_text(f"{text}\n")
    codes: dict[str, set[str]] = {name: set() for name in BANNED}
    for finding in ruff(folder):
        codes[Path(finding["filename"]).stem].add(finding["code"])
    return codes


@pytest.mark.parametrize("name", BANNED)
def test_banned_call_fails_the_lint(name: str, refused: dict[str, set[str]]) -> None:
    """`make lint` rejects the call."""
    assert BANNED[name][1] in refused[name]


def test_no_banned_call_stands_anywhere() -> None:
    """The program, its benchmarks, docs and fuzzing have no banned call, not even with a note that permits it."""
    found = ruff("--ignore-noqa", "--select", ",".join(CODES), *FOLDERS)
    assert not [(one["filename"], one["code"]) for one in found]


def test_lint_covers_the_rules_everywhere() -> None:
    """No folder is exempt from the rules on running code."""
    import tomllib

    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["ruff"]["lint"]
    assert {"S", "TID"} <= set(settings["select"])
    exempt = [*settings["ignore"], *(code for codes in settings["per-file-ignores"].values() for code in codes)]
    assert not [code for code in CODES if any(code.startswith(prefix) for prefix in exempt)]


def test_no_array_or_object_is_loaded_as_pickle() -> None:
    """No call allows pickles in arrays, compiles text, or imports a module by a name that is not in the program."""
    places = []
    for path in (path for folder in FOLDERS for path in (ROOT / folder).rglob("*.py")):
        text = path.read_text(encoding="utf-8")
        if not _SUSPECTS.search(text):
            continue
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.Call):
                name = node.func.id if isinstance(node.func, ast.Name) else ""
                if name in ("__import__", "compile") or any(word.arg == "allow_pickle" for word in node.keywords):
                    places.append(f"{path.name}:{node.lineno}")
    assert not places
