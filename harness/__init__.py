"""On-device profiling and measurement of neural-network latency.

>>> from harness import profile, build_lut, estimate, validate  # doctest: +SKIP
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from harness import version

if TYPE_CHECKING:
    from harness.estimation.network_estimate import estimate
    from harness.fleet.profile import profile
    from harness.lut.build import build_lut
    from harness.validation.network_validation import validate
    from harness.workspace import Workspace

__version__ = version.VERSION
__all__ = ["Workspace", "__version__", "build_lut", "estimate", "profile", "validate"]

_HOMES = {
    "build_lut": "harness.lut.build",
    "estimate": "harness.estimation.network_estimate",
    "profile": "harness.fleet.profile",
    "validate": "harness.validation.network_validation",
    "Workspace": "harness.workspace",
}


def __getattr__(name: str) -> Any:
    """Imports a function of the package when it is first used: the command line must start fast."""
    import importlib

    if name not in _HOMES:
        raise AttributeError(f"module 'harness' has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)
