"""The commands that reproduce a report."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from harness.lut.table import Lut

_SAFE_WORD = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,99}\Z")


def commands(table: Lut, names: Sequence[str], validated: bool) -> tuple[str, ...]:
    """Return the commands that reproduce a report; names that a shell would interpret are replaced."""
    from harness.network.models import BUILTIN_NAMES

    device = table.device if _SAFE_WORD.match(table.device) else "DEVICE"
    folder = table.path.name if _SAFE_WORD.match(table.path.name) else "TABLE"
    safe = (name if _SAFE_WORD.match(name) else "MODEL" for name in names)
    models = (f"builtin:{name}" if name in BUILTIN_NAMES else f"{name.removesuffix('.onnx')}.onnx" for name in safe)
    words = " ".join(dict.fromkeys(models)) or "MODEL.onnx"
    last = f"harness estimate {words} --lut lut/{device}/{folder} --html report.html"
    if validated:
        last = f"harness validate {words} --device {device} --lut lut/{device}/{folder} --html report.html"
    return (
        f"harness profile {words} --device {device}",
        f"harness lut build --device {device} --method {table.method}",
        last,
    )
