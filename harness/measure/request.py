"""The request for a profiling run, the same for the command line, Python, nights and Dask workers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from harness.arguments import check_fields, instance
from harness.measure.calls import Reading
from harness.measure.policy import RepeatPolicy
from harness.network.model_references import BUILTIN_PREFIX, ModelReference
from harness.network.network import Network
from harness.network.network_list import NetworkList
from harness.network.zoo import NAMES as REFERENCE_NETWORKS
from harness.probe.auxiliary import AuxiliaryKind
from harness.settings import SPACE_COUNT, SPACE_TARGET


@dataclass(frozen=True)
class SpaceRequest:
    """Layers to choose from a space: at most `count`, until others are predicted within the relative error `target`.

    `reference` is the path of a space file or `builtin:NAME`.
    """

    reference: str
    count: int = SPACE_COUNT
    target: float = SPACE_TARGET


@dataclass(frozen=True)
class ProfileRequest(Reading):
    """One profiling run of a device: the layers of networks, or layers chosen from a space.

    `models` are paths, `builtin:NAME` or networks in memory; an empty tuple selects the reference networks. With
    `space`, layers of that space are measured instead. `auxiliary` None selects the kind that fits the device's clock.
    Requests with the same `name` are one job: running it again continues it. A request without a name resumes an
    unfinished campaign that measures the same, and otherwise starts a new one; `fresh` always starts a new one. `batch`
    sets the leading dimension of all inputs, `threads` the number of threads that the device uses; both keep the
    samples apart from those of other campaigns. With `strict`, a network that is refused ends the request before
    anything is measured; otherwise the others are measured. `watch_level` adds the campaign that slowdowns are detected
    from, planned for comparisons with that probability of a false alarm.
    """

    device: str
    models: tuple[ModelReference, ...] = ()
    space: SpaceRequest | None = None
    policy: RepeatPolicy = field(default_factory=RepeatPolicy)
    auxiliary: AuxiliaryKind | None = None
    seed: int = 0
    fresh: bool = False
    name: str = ""
    watch_level: float | None = None

    def __post_init__(self) -> None:
        check_fields(self, policy=instance(RepeatPolicy), space=instance(SpaceRequest))

    def networks(self) -> tuple[Network, ...]:
        """Read the networks that can be used; raises as `read_networks` does."""
        return self.read_networks().networks

    def read_networks(self, note: Callable[[str], None] = lambda _: None) -> NetworkList:
        """Read the networks of the request, or the reference networks, as `Reading.read` does."""
        return self.read(self.models or reference_networks(), note)


def reference_networks() -> tuple[str, ...]:
    """Return the built-in networks whose layers are measured if a request names none."""
    return tuple(BUILTIN_PREFIX + name for name in REFERENCE_NETWORKS)
