"""What of a chain each of its layers takes, from what it does in the queues that all layers of the chain share.

A chain keeps two queues busy: one computes, the other moves tensors over the chain's borders, and weights.

    chain   = (compute^p + moved^p)^(1/p)
    compute = sum over layers of (a * context^2 - weights^2)^(1/2)
    moved   = sum over layers of small_rate * small borders + large_rate * large borders + weights
    weights = large_rate * bytes of weights, at most a * context

Small borders fit into a cache, and large ones come from where weights come from. In its context a layer's borders are
on chip, and its weights are not, so these are in the context's time. a, both rates, p, and the size from which borders
are large are fitted to all chains of a campaign. The chain is a sum over its layers of what each adds to it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np

    Array = np.ndarray[Any, np.dtype[np.float64]]

MODEL_ERROR = 0.05
"""Relative error that no chain is believed to be explained better than."""
USUAL_DOUBT = 0.3
"""Relative error of a layer's part where there are too few chains to tell."""
_UNKNOWNS = 4
_HELD = 0.9
"""Share of the chains that are within their intervals of that level."""
_Z_HELD = 1.645
_USUAL_POWER = 4.0
_USUAL_MOVED = 0.5
_PULL = 0.3
_LEAST_COMPUTE = 0.1
_MOST_SIZES = 64
_TINY_S = 1e-15


@dataclass(frozen=True)
class ChainLayers:
    """What the layers of all chains do: `chain` is the index of each layer's chain, in ascending order.

    `context_s` is what it takes in its context; `borders` are sizes in bytes of the tensors that it moves over the
    chain's borders.
    """

    chain: Sequence[int]
    context_s: Array
    borders: Sequence[Sequence[int]]
    weight_bytes: Array


@dataclass(frozen=True)
class Parts:
    """What of its chain each layer takes, and the standard error of that before a chain's sum is kept, as fractions."""

    parts: Array
    doubts: Array


@dataclass(frozen=True)
class _QueueTimes:
    """Seconds by layer at some values of the unknowns, and each queue of each chain."""

    compute: Array
    moved: Array
    queues: tuple[Array, Array]
    power: float

    @property
    def computing(self) -> Array:
        """How far the computing queue decides, for each chain."""
        import numpy as np

        one, other = (np.log(queue) * self.power for queue in self.queues)
        share: Array = np.exp(one - np.logaddexp(one, other))
        return share

    @property
    def log_total(self) -> Array:
        """Logarithm of each chain's seconds."""
        import numpy as np

        one, other = (np.log(queue) * self.power for queue in self.queues)
        total: Array = np.logaddexp(one, other) / self.power
        return total


def parts_of(work: ChainLayers, chains_s: Array, stderr_s: Array) -> Parts:
    """Fits the queues to chains of `chains_s` seconds, and parts these.

    A layer is as uncertain as layers have to be for the chains to be as far off as they are, beyond what is known of
    their own errors, and as its parts of the two queues differ where neither decides.
    """
    import numpy as np

    relative = stderr_s / chains_s
    found = min((_fit(work, size, chains_s, relative) for size in _sizes(work)), key=lambda fit: fit[0])
    sums, owner = found[1], np.asarray(work.chain, int)
    compute, moved = sums.compute / sums.queues[0][owner], sums.moved / sums.queues[1][owner]
    decides = sums.computing[owner]
    parts = decides * compute + (1 - decides) * moved
    # Errors of layers that know nothing of each other leave a chain as far off as this one's layer-by-layer error.
    spread = np.sqrt(np.bincount(owner, parts**2, len(chains_s)))
    beyond = np.maximum(0.0, ((sums.log_total - np.log(chains_s)) / _Z_HELD) ** 2 - relative**2)
    seen = np.append(np.sqrt(beyond) / spread, np.full(_UNKNOWNS, USUAL_DOUBT))
    error = float(np.quantile(seen, _HELD))
    return Parts(parts, np.hypot(error * parts, np.sqrt(decides * (1 - decides)) * (compute - moved)))


def _sizes(work: ChainLayers) -> Sequence[float]:
    """From where on borders may be large: between any two sizes, or some of those; all of them where few differ."""
    import numpy as np

    known = np.unique([size for sizes in work.borders for size in sizes if size])
    between = np.sqrt(known[1:] * known[:-1].astype(float))
    if len(between) > _MOST_SIZES:
        between = between[np.linspace(0, len(between) - 1, _MOST_SIZES).round().astype(int)]
    return [0.0, *between.tolist()]


def _fit(work: ChainLayers, large_bytes: float, chains_s: Array, relative: Array) -> tuple[float, _QueueTimes]:
    """The cost of the best values of the unknowns for one size, and what they say."""
    import numpy as np
    from scipy.optimize import least_squares

    small = np.array([sum(size for size in sizes if size < large_bytes) for sizes in work.borders], float)
    large = np.array([sum(sizes) for sizes in work.borders], float) - small
    member = np.equal.outer(np.arange(len(chains_s)), np.asarray(work.chain)).astype(float)
    moved_bytes = max(1.0, float((small + large + work.weight_bytes).sum()))
    usual_rate = _USUAL_MOVED * float(work.context_s.sum()) / moved_bytes
    usual = np.array([0.0, np.log(usual_rate), np.log(usual_rate), np.log(_USUAL_POWER - 1)])

    def sums(unknowns: Array) -> _QueueTimes:
        scale, small_rate, large_rate, overlap = np.exp(unknowns)
        context = scale * work.context_s
        weights = np.minimum(large_rate * work.weight_bytes, context)
        compute = np.maximum(np.sqrt(context**2 - weights**2), _LEAST_COMPUTE * context)
        moved = small_rate * small + large_rate * large + weights + _TINY_S
        queues: tuple[Array, Array] = (member @ compute, member @ moved)
        return _QueueTimes(compute, moved, queues, 1 + overlap)

    def misfit(unknowns: Array) -> Array:
        off = (sums(unknowns).log_total - np.log(chains_s)) / np.hypot(MODEL_ERROR, relative)
        return np.append(off, _PULL * (unknowns - usual))

    fitted = least_squares(misfit, usual, loss="soft_l1")
    return float(fitted.cost), sums(fitted.x)
