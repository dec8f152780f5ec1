"""Space files: the layers that a predictor should cover, as operator blocks with ranges of sizes (docs/spaces.md)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

from pydantic import Field

from harness.errors import ConfigurationError
from harness.network.model_references import BUILTIN_NAMES, BUILTIN_PREFIX
from harness.settings import BUILTIN_SPACES, check_settings, invalid_key, read_toml
from harness.space.blocks import AnyBlock
from harness.space.configuration import Configuration
from harness.strict_model import StrictModel
from harness.text import did_you_mean

_NETWORKS = tuple(BUILTIN_PREFIX + name for name in BUILTIN_NAMES)
_FOLDER = Path(__file__).parent
_Positive = Annotated[int, Field(ge=1, le=1 << 50)]


class SpaceLimits(StrictModel):
    """The largest layers of the space: multiply-adds, and bytes of inputs, weights and result."""

    max_macs: _Positive = 4_000_000_000
    max_bytes: _Positive = 1 << 28

    def hold(self, layer: Configuration) -> bool:
        """Return whether a layer is within the limits."""
        return layer.macs <= self.max_macs and layer.bytes <= self.max_bytes


class LayerSpace(StrictModel):
    """All layers of all blocks that are within the limits.

    `networks` are built-in networks to measure in addition on a device that chains layers: single layers do not show
    what chains save.
    """

    limits: SpaceLimits = SpaceLimits()
    networks: Annotated[tuple[str, ...], Field(max_length=20)] = ()
    layers: Annotated[tuple[AnyBlock, ...], Field(min_length=1, max_length=200)]

    @property
    def count(self) -> int:
        """Return the number of combinations of values; some are invalid or beyond the limits."""
        return sum(block.count for block in self.layers)

    def layer_at(self, block: AnyBlock, point: Sequence[float]) -> Configuration | None:
        """Return the layer at a point of a block; None if its sizes do not fit together or exceed the limits."""
        layer = block.at(point)
        return layer if layer is not None and self.limits.hold(layer) else None


def load_space(reference: str) -> LayerSpace:
    """Read the space at a path or `builtin:NAME`; raises ConfigurationError."""
    if reference.startswith(BUILTIN_PREFIX) and reference not in BUILTIN_SPACES:
        step = f"Built-in spaces: {', '.join(BUILTIN_SPACES)}"
        raise ConfigurationError(f"There is no built-in space {reference[:60]!r}", next_step=step)
    name = reference.removeprefix(BUILTIN_PREFIX)
    path = _FOLDER / f"{name}.toml" if reference in BUILTIN_SPACES else Path(reference)
    given = read_toml(path)
    for name in ("layers", "networks"):
        if isinstance(given.get(name), list):  # strict validation takes tuples for what stays as it is
            given[name] = tuple(given[name])
    space = check_settings(LayerSpace.model_validate, given, path)
    for network in space.networks:
        if network not in _NETWORKS:
            step = did_you_mean(network, _NETWORKS, "Built-in networks")
            raise invalid_key(path, "networks", f"names {network[:60]!r}, which is not built in", step)
    return space
