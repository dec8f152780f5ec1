"""Limits to which predictions are clamped: the fastest measured rates, and how much slower each class is.

The *ideal time* of a layer is the longer of the times of its bytes and its work, each at the fastest rate that any
training layer reached. No layer is much faster. A class of operators is slower by a factor that follows from its larger
layers, and has a launch time that follows from its smallest ones. No layer takes much longer than both together,
with channels and sums rounded up to whole vectors, or than its weights alone at a slow rate if that is longer. This is
the slowest rate of the larger layers that mostly read weights. Both limits never shrink if a size of a layer grows.

A layer below resolution shows what it takes at most, and so a rate that is reached at least.

An operator *moves nothing* if its layers together take significantly less than half the time of their bytes at the
fastest rate of all others. A device may write the parts of a Concat directly to their places in the result. Its layers
are not used to find rates, and if there are enough of them they have no lower limit.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from harness.array_types import Floats, Ints, Mask
from harness.predictor.features.layer_arrays import LayerArrays
from harness.predictor.features.layer_features import CODE_LEVELS, WIDEST, classes_of
from harness.strict_model import Amount

_SLACK = 1.5
"""A rate beyond all that were seen, and a class slower than its slowest layer, by at most this factor."""
_NOISY = 0.2
_FEWEST = 3
_SURE_SIGMAS = 2.0
_IDLE = 0.5
VIEW = "move/view"
_MOVERS = "move/"


@dataclass(frozen=True)
class ClassLimits:
    """Of a class of operators: `launch_s` for no work at all with one part, and time over the ideal time at most."""

    launch_s: Amount
    slowness: Amount


@dataclass(frozen=True)
class Bounds:
    """The limits of a device.

    byte_s: seconds per byte at the fastest rate
    weight_s: seconds per byte of weights at a slow rate, 0 without layers that mostly read weights
    work_s: seconds per operation at the fastest rate, by family of classes
    least_s: the shortest latency, of layers below resolution what they take at most
    classes: the limits of each learnt class, down to those that name an operator's code
    idle: the limits of each operator that moves nothing
    """

    byte_s: Amount
    weight_s: Amount
    work_s: Mapping[str, Amount]
    least_s: Amount
    classes: Mapping[str, ClassLimits]
    idle: Mapping[str, ClassLimits]

    def moves_nothing(self, arrays: LayerArrays) -> Mask:
        """Return which layers are of an operator that moves nothing."""
        return np.array([path in self.idle for path in arrays.paths], dtype=bool)

    def ideal_s(self, arrays: LayerArrays) -> Floats:
        """Return the time of each layer at the fastest rates."""
        return self._at_fastest_s(arrays, arrays.macs)

    def whole_vectors_s(self, arrays: LayerArrays) -> Floats:
        """Return the time of each layer at the fastest rates if its channels and sums were whole vectors."""
        channels = np.where(arrays.channelwise, arrays.groups, arrays.columns)
        depth = np.where(arrays.channelwise, WIDEST, arrays.group_channels * arrays.taps)
        return self._at_fastest_s(arrays, arrays.macs * _padding(channels) * _padding(depth))

    def _at_fastest_s(self, arrays: LayerArrays, work: Floats) -> Floats:
        rates = np.array([self.work_s.get(family, 0.0) for family in _families(arrays)])
        return np.asarray(np.maximum(arrays.moved_bytes * self.byte_s, work * rates))

    def of(self, arrays: LayerArrays) -> tuple[Floats, Floats]:
        """Return the lowest and the highest latency of each layer, in seconds; 0 and infinity where nothing is known.

        A view moves bytes on some devices and none on others: only its greatest latency depends on its size.
        """
        view = np.array([path.startswith(VIEW) for path in arrays.paths], dtype=bool) | self.moves_nothing(arrays)
        names = zip(arrays.paths, _paths(arrays), strict=True)
        limits = [self.idle.get(path) or _finest(self.classes, name) for path, name in names]
        launch = np.array([limit.launch_s if limit else np.inf for limit in limits])
        slowness = np.array([limit.slowness if limit else 0.0 for limit in limits])
        low = np.where(view, 0.0, np.maximum(self.ideal_s(arrays), self.least_s) / _SLACK)
        launch *= arrays.sizes["parts"]
        slow_s = np.maximum(launch + self.whole_vectors_s(arrays) * slowness, arrays.weight_bytes * self.weight_s)
        return low, np.maximum(_SLACK * slow_s, low)


def bounds_of(arrays: LayerArrays, latency_s: Floats, noise: Floats) -> Bounds:
    """Return the limits that measured layers show; `noise` is the relative standard error of each latency."""
    sure = noise <= _NOISY
    if sure.sum() < _FEWEST:
        sure = np.ones(len(arrays), dtype=bool)
    idle = _idle(arrays, latency_s, noise)
    moves = np.array([not path.startswith(VIEW) and path not in idle for path in arrays.paths], dtype=bool)
    moving = sure & moves if (sure & moves).any() else sure
    shown = moves if moves.any() else sure
    longest_s = np.where(sure, latency_s, latency_s * (1.0 + _SURE_SIGMAS * noise))
    families = np.array(_families(arrays))
    rates = {
        str(family): float(np.min(longest_s[own] / arrays.macs[own]))
        for family in np.unique(families)
        for own in [shown & (families == family)]
        if own.any()
    }
    found = Bounds(
        float(np.min(longest_s[shown] / arrays.moved_bytes[shown])),
        _slow_weight_s(arrays, latency_s, moving),
        rates,
        float(np.min(longest_s[shown])),
        {},
        {},
    )
    ideal = found.ideal_s(arrays)
    members: dict[str, list[int]] = {}
    for place, path in enumerate(_paths(arrays)):
        for name in classes_of(path)[:CODE_LEVELS]:
            members.setdefault(name, []).append(place)
    given = (ideal, latency_s, longest_s, arrays.sizes["parts"], sure)
    classes = {name: _limits(*given, np.array(own)) for name, own in sorted(members.items())}
    limits = {
        path: ClassLimits(
            float(np.median(latency_s[own] / arrays.sizes["parts"][own])),
            float(latency_s[own].sum() / ideal[own].sum()),
        )
        for path, own in idle.items()
        if len(own) >= _FEWEST
    }
    return replace(found, classes=classes, idle=limits)


def _idle(arrays: LayerArrays, latency_s: Floats, noise: Floats) -> dict[str, Ints]:
    """Return the places of the layers of each operator that moves nothing: the fastest ones, up to a gap.

    They are at most half of the operators without products. Those with few layers count only as fast.
    """
    members: dict[str, list[int]] = {}
    for place, path in enumerate(arrays.paths):
        if path.startswith(_MOVERS) and not path.startswith(VIEW):
            members.setdefault(path, []).append(place)
    places = {path: np.array(own) for path, own in members.items()}
    order = sorted(
        places, key=lambda path: float(latency_s[places[path]].sum() / arrays.moved_bytes[places[path]].sum())
    )
    is_rest = np.array([not path.startswith(VIEW) for path in arrays.paths], dtype=bool)
    found: list[str] = []
    for count in range(1, len(order) // 2 + 1):
        is_rest[places[order[count - 1]]] = False
        rest = is_rest & (noise <= _NOISY) if (noise[is_rest] <= _NOISY).any() else is_rest
        usual_s = arrays.moved_bytes * float(np.min(latency_s[rest] / arrays.moved_bytes[rest]))
        judged = [places[path] for path in order[:count] if len(places[path]) >= _FEWEST]
        longest_s = [
            latency_s[own].sum() + _SURE_SIGMAS * float(np.linalg.norm(noise[own] * latency_s[own])) for own in judged
        ]
        is_apart = all(time_s <= _IDLE * usual_s[own].sum() for time_s, own in zip(longest_s, judged, strict=True))
        if judged and is_apart:
            found = order[:count]
        elif found:
            break
    return {path: places[path] for path in found}


def _slow_weight_s(arrays: LayerArrays, latency_s: Floats, moving: Mask) -> float:
    """Return the maximum seconds per byte of weights among the larger half of layers that mostly read weights."""
    own = np.flatnonzero(moving & (arrays.weight_bytes > 0.5 * arrays.moved_bytes))
    if not len(own):
        return 0.0
    large = own[arrays.weight_bytes[own] >= np.median(arrays.weight_bytes[own])]
    return float(np.max(latency_s[large] / arrays.weight_bytes[large]))


def _limits(ideal: Floats, latency_s: Floats, longest_s: Floats, parts: Floats, sure: Mask, own: Ints) -> ClassLimits:
    """Return limits that hold for all sure layers of a class; slowness is that of the larger half of them.

    It is not more than that of the larger half of all, at their longest: of views, only a few may be sure, and small.
    """
    kept = own[sure[own]] if sure[own].any() else own
    slowness = min(_slowness(ideal, latency_s, kept), _slowness(ideal, longest_s, own))
    launches_s = np.maximum(latency_s[kept] - slowness * ideal[kept], np.min(latency_s[kept])) / parts[kept]
    launch_s = float(np.max(launches_s))
    return ClassLimits(launch_s, slowness)


def _slowness(ideal: Floats, latency_s: Floats, own: Ints) -> float:
    large = own[ideal[own] >= np.median(ideal[own])]
    return float(np.max(latency_s[large] / ideal[large]))


def _padding(sizes: Floats) -> Floats:
    """Return how much larger each size is as whole vectors."""
    return np.asarray(np.ceil(sizes / WIDEST) * WIDEST / sizes)


def _families(arrays: LayerArrays) -> list[str]:
    return [path.split("/", 1)[0] for path in arrays.paths]


def _paths(arrays: LayerArrays) -> list[str]:
    """Return the classes that share limits: views of feature maps apart from others, as they wait for a conversion."""
    pairs = zip(arrays.paths, arrays.sizes["maps"].tolist(), strict=True)
    return [path.replace(VIEW, f"{VIEW}/maps", 1) if maps else path for path, maps in pairs]


def _finest(classes: Mapping[str, ClassLimits], path: str) -> ClassLimits | None:
    names: Sequence[str] = classes_of(path)
    return next((classes[name] for name in reversed(names) if name in classes), None)
