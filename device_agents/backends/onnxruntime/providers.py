"""ONNX Runtime's execution providers: their names, and the options that select one."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Mapping, Optional

import onnxruntime

from device_agents.backends.option_reader import OptionReader

CPU = "CPUExecutionProvider"
_ENDING = "ExecutionProvider"
_ALIASES = {"directml": "dml"}
_MEMORY = {
    "CUDAExecutionProvider": "cuda",
    "TensorrtExecutionProvider": "cuda",
    "NvTensorRTRTXExecutionProvider": "cuda",
    "DmlExecutionProvider": "dml",
    "CANNExecutionProvider": "cann",
}
"""The memory that a provider's device computes in, by the name that ONNX Runtime gives it; others use the host's."""


@dataclass(frozen=True)
class Provider:
    """An execution provider with its options.

    `memory` names the device's own memory, None if it computes in that of the host. Nodes that the provider does not
    execute run on the CPU if `allow_fallback` is true, and are an error otherwise.
    """

    name: str = CPU
    options: Mapping[str, Any] = field(default_factory=dict)
    allow_fallback: bool = False

    @property
    def memory(self) -> Optional[str]:
        """Name of the device's own memory."""
        return _MEMORY.get(self.name)

    @property
    def device_id(self) -> int:
        """Number of the device, by the option that the providers with own memory share; 0 by default."""
        number = str(self.options.get("device_id", 0))
        return int(number) if number.isdigit() else 0

    @property
    def short_name(self) -> str:
        """The name without its ending, for example CUDA."""
        return _short(self.name)


def read_provider(read: OptionReader) -> Provider:
    """Return the provider that the options of a backend select; raises Refused with the names that this build has."""
    options, allow_fallback = read.table("provider_options"), read.flag("allow_fallback", False)
    wanted = read.text("provider", "CPU")
    available = onnxruntime.get_available_providers()
    by_name = {_short(name).lower(): name for name in available}
    asked = _short(wanted).lower()
    name = by_name.get(_ALIASES.get(asked, asked))
    if name is None:
        names = ", ".join(sorted(map(_short, available)))
        raise read.wrong("provider", f"must be one that this build of onnxruntime has: {names}; it is {wanted[:80]!r}")
    if name == CPU and options:
        raise read.wrong("provider_options", "needs a provider other than CPU")
    return Provider(name, options, allow_fallback)


def _short(name: str) -> str:
    return name[: -len(_ENDING)] if name.endswith(_ENDING) else name
