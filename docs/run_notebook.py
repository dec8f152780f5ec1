"""Run the cells of docs/tutorial.ipynb in an empty folder and store their outputs: `make docs`.

The cells are plain Python without magics, so they run here as they do in Jupyter: in one namespace, in order, and the
value of a last expression is displayed.
"""

from __future__ import annotations

import ast
import contextlib
import io
import json
import os
import tempfile
from code import InteractiveInterpreter
from pathlib import Path
from typing import Any
from unittest import mock

NOTEBOOK = Path(__file__).with_name("tutorial.ipynb")


def run(notebook: dict[str, Any]) -> dict[str, Any]:
    """Return the notebook with the outputs of this run; an exception of a cell ends it."""
    cells = _Cells()
    count = 0
    for cell in notebook["cells"]:
        if cell["cell_type"] == "code":
            count += 1
            cell["execution_count"] = count
            cell["outputs"] = _outputs("".join(cell["source"]), cells, count)
    return notebook


class _Cells(InteractiveInterpreter):
    """Runs statements in one namespace; an exception ends the run."""

    def showtraceback(self) -> None:
        """Raise the exception of a statement again."""
        raise


def _outputs(source: str, cells: _Cells, count: int) -> list[dict[str, Any]]:
    """Run one cell; return what it prints and the value of its last expression."""
    statements = ast.parse(source).body
    shown: list[object] = []
    with contextlib.redirect_stdout(io.StringIO()) as printed, mock.patch("sys.displayhook", shown.append):
        for statement in statements:
            is_shown = statement is statements[-1] and isinstance(statement, ast.Expr)
            text = ast.get_source_segment(source, statement) or ""
            cells.runsource(text + "\n", "cell", "single" if is_shown else "exec")
    value = shown[0] if shown else None
    outputs: list[dict[str, Any]] = []
    if printed.getvalue():
        outputs.append({"output_type": "stream", "name": "stdout", "text": _lines(printed.getvalue())})
    if value is not None:
        html = value._repr_html_() if hasattr(value, "_repr_html_") else ""
        plain = {"text/plain": [f"<{type(value).__name__}>"], "text/html": _lines(html)} if html else {}
        data = plain or {"text/plain": _lines(repr(value))}
        outputs.append({"output_type": "execute_result", "execution_count": count, "data": data, "metadata": {}})
    return outputs


def _lines(text: str) -> list[str]:
    return text.splitlines(keepends=True)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        os.environ["OPENBLAS_NUM_THREADS"] = "1"
        found = run(json.loads(NOTEBOOK.read_text(encoding="utf-8")))
    NOTEBOOK.write_text(json.dumps(found, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
