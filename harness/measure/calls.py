"""What functions of `harness` have in common: how they read networks, and how they use a device.

The arguments of such a function are the fields of one frozen dataclass, which extends these; `arguments.spread` makes
keywords of them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from harness.device.variant import Variant
from harness.measure.busy_device import BusyWait
from harness.network.model_references import ModelReference
from harness.network.network_list import NetworkList, read_networks
from harness.workspace import AnyWorkspace


@dataclass(frozen=True, kw_only=True)
class Reading:
    """How networks are read, and on how many threads they run.

    `dims` are the sizes of symbolic dimensions, `batch` is the leading dimension in place of their own. With
    `strict`, a network that is refused ends the call.
    """

    dims: Mapping[str, int] | None = None
    batch: int | None = None
    threads: int | None = None
    strict: bool = False

    @property
    def variant(self) -> Variant:
        """What keeps the samples apart from those with another batch or other threads."""
        return Variant(self.batch, self.threads)

    def read(self, models: Sequence[ModelReference], note: Callable[[str], None] = lambda _: None) -> NetworkList:
        """Read all networks before any is used; `note` and errors are those of `network_list.read_networks`."""
        return read_networks(models, self.dims, batch=self.batch, strict=self.strict, note=note)


@dataclass(frozen=True, kw_only=True)
class DeviceCall(BusyWait):
    """How a call uses a device: the workspace with the device, and the wait if it is in use."""

    workspace: AnyWorkspace = None
