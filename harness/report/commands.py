"""The commands that reproduce a report."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from harness.text import is_safe_name

if TYPE_CHECKING:
    from harness.lut.table import Lut

_LONGEST_NAME = 100


def commands(table: Lut, names: Sequence[str], validated: bool) -> tuple[str, ...]:
    """Return the commands that reproduce a report; names that a shell would interpret are replaced."""
    from harness.network.models import BUILTIN_NAMES

    device = table.device if is_safe_name(table.device) else "DEVICE"
    folder = table.path.name if is_safe_name(table.path.name) else "TABLE"
    safe = (name if is_safe_name(name, _LONGEST_NAME) else "MODEL" for name in names)
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
