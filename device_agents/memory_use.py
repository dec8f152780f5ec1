"""The memory that this process occupies: its resident set now, and the largest one since a moment.

Linux counts both; elsewhere nothing is reported.
"""

from __future__ import annotations

from typing import Dict, Optional

_STATUS, _CLEAR_REFS = "/proc/self/status", "/proc/self/clear_refs"
_RESET_PEAK = "5"


class LoadMemory:
    """The resident set of this process before, during and after a probe is loaded and run for the first time."""

    def __init__(self) -> None:
        self._before = _status_bytes().get("VmRSS")
        self._has_peak = _reset_peak()

    def fields(self) -> Dict[str, int]:
        """Return `before_bytes`, `loaded_bytes` and `peak_bytes` if the system reports them."""
        now = _status_bytes()
        found = {
            "before_bytes": self._before,
            "loaded_bytes": now.get("VmRSS"),
            "peak_bytes": now.get("VmHWM") if self._has_peak else None,
        }
        return {name: value for name, value in found.items() if value is not None}


def _reset_peak() -> bool:
    """Let the kernel count the peak anew; return whether it does."""
    try:
        with open(_CLEAR_REFS, "w", encoding="ascii") as file:
            file.write(_RESET_PEAK)
    except OSError:
        return False
    return True


def _status_bytes() -> Dict[str, Optional[int]]:
    try:
        with open(_STATUS, encoding="ascii", errors="replace") as lines:
            rows = [line.split() for line in lines if line.startswith(("VmRSS:", "VmHWM:"))]
        return {row[0].rstrip(":"): int(row[1]) << 10 for row in rows}
    except (OSError, ValueError, IndexError):
        return {}
