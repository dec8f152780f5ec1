"""The time of a layer on a machine, and its robust fit to measured latencies.

    latency = start + compute + transfer - overlap * min(compute, transfer)
    compute = operations of the layer / rate of its class
    transfer = bytes of weights / bandwidth of weights + bytes of features / bandwidth of features

An overlap of 1 is max(compute, transfer), one of 0 the sum. Where an array waits for the weights of its first round of
columns, only those of later rounds arrive during computation: then overlap is overlap * (1 - 1 / rounds). The model is
the refined roofline of ANNETTE (array utilisation, memory and compute), with the start-up and the overlap fitted
instead of assumed.

The error of a layer has four parts: that of its measurement, a relative one of its class, a fixed one, and one of the
overlap. The last differs from layer to layer and is proportional to min(compute, transfer). So rates and bandwidths
come mostly from long layers that one of the terms decides. The loss is Cauchy's: layers that the model does not
describe hardly count.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from scipy.optimize import least_squares

from harness.array_types import Floats, Ints, Mask
from harness.measure.summary import MAD_TO_SIGMA
from harness.npu.fit.layer_samples import LayerSamples
from harness.npu.fit.multiplier_array import MultiplierArray

FASTEST_S, SLOWEST_S = 1e-16, 1e-3
"""Limits of the seconds per operation and per byte."""
LEAST_ERROR, MOST_ERROR = 0.01, 0.3
"""Limits of the relative error of the model."""
_USUAL_OVERLAP = 0.5
"""Where no layer shows the overlap, it is between none and all."""
MOST_OVERLAP_ERROR = 0.3
"""The largest error of the overlap: about that of a uniform distribution from 0 to 1."""
_FIRST_ERROR = 0.15
_BOTH = 0.2
"""Share of the longer term from which on the shorter one shows the overlap."""
_FEWEST = 8
_LONGEST_START_S = 1.0
_TOLERANCES = {"ftol": 1e-6, "xtol": 1e-6, "gtol": 1e-6, "max_nfev": 100}
_REFITS = 4
_OVERLAPS = (0.9, 0.2)


@dataclass(frozen=True)
class Amounts:
    """The work of some layers: operations, bytes, and the number of each layer's class, all (layers,).

    `after_first` is the share of a layer after its first round of columns.
    """

    operations: Floats
    weight_bytes: Floats
    feature_bytes: Floats
    after_first: Floats
    class_of: Ints
    latency_s: Floats
    stderr_s: Floats

    def take(self, index: Ints) -> Amounts:
        """Return the layers at these positions, which may repeat."""
        return Amounts(*(getattr(self, name)[index] for name in self.__dataclass_fields__))


@dataclass(frozen=True)
class ModelErrors:
    """Errors of the model: relative of each class of rates, (classes,), in seconds, and of the overlap."""

    relative: Floats
    fixed_s: float = 0.0
    overlap: float = 0.0

    def of(self, work: Amounts, shorter_s: Floats) -> Floats:
        """Return the standard errors of layers; `shorter_s` is min(compute, transfer), (..., layers)."""
        relative_s = self.relative[work.class_of] * np.maximum(np.abs(work.latency_s), work.stderr_s)
        one = np.hypot(np.hypot(work.stderr_s, self.fixed_s), relative_s)
        return np.asarray(np.hypot(one, self.overlap * shorter_s))


@dataclass(frozen=True)
class LayerModel:
    """Fitted constants in seconds per operation of each class, per byte, and per layer.

    `rate_of` numbers the rate of each class: classes may share one. `errors` are those of the model. An array that
    `waits` computes its first round of columns when their weights are there.
    """

    classes: tuple[str, ...]
    operation_s: Floats
    weight_byte_s: float
    feature_byte_s: float
    start_s: float
    overlap: float
    errors: ModelErrors
    rate_of: tuple[int, ...]
    waits: bool = False

    def parts(self, work: Amounts) -> tuple[Floats, Floats]:
        """Return compute and transfer times, (layers,)."""
        compute = work.operations * self.operation_s[work.class_of]
        return compute, work.weight_bytes * self.weight_byte_s + work.feature_bytes * self.feature_byte_s

    def may_overlap(self, work: Amounts) -> Floats:
        """Return the share of each layer whose transfers computation may hide, (layers,)."""
        return work.after_first if self.waits else np.ones_like(work.after_first)

    def latency_s(self, work: Amounts) -> Floats:
        """Return the modelled latencies, (layers,)."""
        compute, transfer = self.parts(work)
        hidden = self.overlap * self.may_overlap(work) * np.minimum(compute, transfer)
        return np.asarray(self.start_s + compute + transfer - hidden)

    def residuals(self, work: Amounts) -> Floats:
        """Return (measured - modelled) / modelled, (layers,)."""
        modelled = self.latency_s(work)
        return np.asarray((work.latency_s - modelled) / modelled)

    def errors_s(self, work: Amounts) -> Floats:
        """Return the standard errors of layers, (layers,)."""
        return self.errors.of(work, np.minimum(*self.parts(work)))


def amounts_of(samples: LayerSamples, classes: Sequence[str], array: MultiplierArray) -> Amounts:
    """Return the work of samples on an array; every sample is of one of `classes`."""
    place = {name: at for at, name in enumerate(classes)}
    return Amounts(
        np.where(samples.in_array, array.operations(samples.arrays), samples.operations),
        samples.weight_bytes,
        samples.feature_bytes,
        np.where(samples.in_array, array.after_first(samples.arrays), 1.0),
        np.array([place[name] for name in samples.rate_classes]),
        samples.latency_s,
        samples.stderr_s,
    )


def fit_layers(work: Amounts, classes: tuple[str, ...]) -> LayerModel:
    """Return the model that explains the layers best; every class has a layer in `work`."""
    fits = []
    for overlap in _OVERLAPS:
        model = _model(
            classes,
            tuple(range(len(classes))),
            _first(work, classes, overlap),
            ModelErrors(np.full(len(classes), _FIRST_ERROR)),
            waits=False,
        )
        fits.append(fit_again(work, _fit(work, model, model.errors)))
    return min(fits, key=lambda one: loss(work, one.latency_s(work), one.errors_s(work)))


def fit_again(work: Amounts, model: LayerModel) -> LayerModel:
    """Return the model fitted from here until the errors of layers are those of its residuals."""
    for _ in range(_REFITS):
        model = refit(work, model)
    return model


def tied(model: LayerModel, first: str, second: str) -> LayerModel:
    """Return the model with the rate of the first class for the second as well, to fit from."""
    one, other = model.classes.index(first), model.classes.index(second)
    shared = [model.rate_of[one if at == other else at] for at in range(len(model.classes))]
    numbers = {rate: number for number, rate in enumerate(dict.fromkeys(shared))}
    operation_s = model.operation_s.copy()
    operation_s[other] = operation_s[one]
    return replace(model, operation_s=operation_s, rate_of=tuple(numbers[rate] for rate in shared))


def refit(work: Amounts, model: LayerModel) -> LayerModel:
    """Return the model fitted again from here, with errors as large as its residuals show."""
    return _fit(work, model, _errors(work, model))


def _errors(work: Amounts, model: LayerModel) -> ModelErrors:
    """Return the errors that residuals show: of the overlap where both terms matter, relative of each class, and fixed
    of the shorter half of the layers."""
    modelled = model.latency_s(work)
    residual = np.abs(work.latency_s - modelled)
    shorter, longer = np.sort(np.stack(model.parts(work)), axis=0)
    both = shorter > _BOTH * longer
    overlap = MOST_OVERLAP_ERROR
    if np.count_nonzero(both) >= _FEWEST:
        overlap = min(overlap, MAD_TO_SIGMA * float(np.median(residual[both] / shorter[both])))
    relative = np.array([_relative(residual, modelled, work.class_of == at, ~both) for at in range(len(model.classes))])
    short = modelled <= np.median(modelled)
    fixed_s = MAD_TO_SIGMA * float(np.median(residual[short]))
    known_s = float(np.median((relative[work.class_of] * modelled)[short]))
    return ModelErrors(relative, math.sqrt(max(0.0, fixed_s**2 - known_s**2)), overlap)


def _relative(residual_s: Floats, modelled_s: Floats, members: Mask, clear: Mask) -> float:
    """Return the relative error of a class, by the longer half of its layers that one term decides, if it has some."""
    own = members & clear if np.count_nonzero(members & clear) >= _FEWEST else members
    if not np.any(own):
        return MOST_ERROR
    long = own & (modelled_s >= np.median(modelled_s[own]))
    share = MAD_TO_SIGMA * float(np.median(residual_s[long] / modelled_s[long]))
    return float(np.clip(share, LEAST_ERROR, MOST_ERROR))


def loss(work: Amounts, modelled_s: Floats, scale_s: Floats) -> float:
    """Return Cauchy's negative log likelihood, without its constant."""
    return float(np.sum(np.log1p(((work.latency_s - modelled_s) / scale_s) ** 2) + np.log(scale_s)))


def _first(work: Amounts, classes: Sequence[str], overlap: float) -> Floats:
    """Return variables to start from: of each class, the rate that its faster layers reach."""
    latency_s = np.maximum(work.latency_s, np.maximum(work.stderr_s, 1e-9))
    operation_s = [np.quantile((latency_s / work.operations)[work.class_of == at], 0.2) for at in range(len(classes))]
    weighted = work.weight_bytes > 0
    per_byte = latency_s[weighted] / work.weight_bytes[weighted]
    weight_s = np.quantile(per_byte, 0.1) if per_byte.size else 1e-11
    moving = work.feature_bytes > 0
    feature_s = np.quantile(latency_s[moving] / work.feature_bytes[moving], 0.1) / 4 if np.any(moving) else 1e-11
    rates = np.log(np.clip([*operation_s, weight_s, feature_s], 2 * FASTEST_S, SLOWEST_S / 2))
    return np.array([*rates, float(np.quantile(latency_s, 0.05)) / 2, overlap])


def _variables(model: LayerModel) -> Floats:
    firsts = [model.rate_of.index(number) for number in range(max(model.rate_of) + 1)]
    rates = np.log([*model.operation_s[firsts], model.weight_byte_s, model.feature_byte_s])
    return np.array([*rates, model.start_s, model.overlap])


def _fit(work: Amounts, model: LayerModel, errors: ModelErrors) -> LayerModel:
    """Return the model with the constants of least loss; the errors of layers are those at the start."""
    rate_of = np.array(model.rate_of)
    count = int(rate_of.max()) + 1
    scale = errors.of(work, np.minimum(*model.parts(work)))
    may_overlap = model.may_overlap(work)
    rows = np.arange(len(work.latency_s))
    # A start-up of the order of one, as the logarithms of rates are.
    units = np.ones(count + 4)
    units[count + 2] = max(float(np.median(np.abs(work.latency_s))), 1e-9)

    def residuals(variables: Floats) -> Floats:
        tried = _model(model.classes, model.rate_of, variables * units, errors, model.waits)
        prior = (tried.overlap - _USUAL_OVERLAP) / MOST_OVERLAP_ERROR
        return np.append((tried.latency_s(work) - work.latency_s) / scale, prior)

    def jacobian(variables: Floats) -> Floats:
        tried = _model(model.classes, model.rate_of, variables * units, errors, model.waits)
        compute, transfer = tried.parts(work)
        overlap = tried.overlap * may_overlap
        by_transfer = 1 - overlap * (transfer < compute)
        found = np.zeros((len(rows), count + 4))
        found[rows, rate_of[work.class_of]] = compute * (1 - overlap * (compute <= transfer))
        found[:, count] = by_transfer * work.weight_bytes * tried.weight_byte_s
        found[:, count + 1] = by_transfer * work.feature_bytes * tried.feature_byte_s
        found[:, count + 2] = 1
        found[:, count + 3] = -may_overlap * np.minimum(compute, transfer)
        prior = np.zeros((1, count + 4))
        prior[0, -1] = 1 / MOST_OVERLAP_ERROR
        return np.concatenate([found * units / scale[:, None], prior])

    low = np.array([np.log(FASTEST_S)] * (count + 2) + [0.0, 0.0]) / units
    high = np.array([np.log(SLOWEST_S)] * (count + 2) + [_LONGEST_START_S, 1.0]) / units
    inner = 1e-6 * np.minimum(high - low, 1.0)
    start = np.clip(_variables(model) / units, low + inner, high - inner)
    found = least_squares(
        residuals, start, jac=jacobian, bounds=(low, high), loss="cauchy", x_scale="jac", **_TOLERANCES
    )
    return _model(model.classes, model.rate_of, found.x * units, errors, model.waits)


def _model(
    classes: tuple[str, ...], rate_of: tuple[int, ...], variables: Floats, errors: ModelErrors, waits: bool
) -> LayerModel:
    count = max(rate_of) + 1
    rates = np.exp(variables[: count + 2])
    weight_s, feature_s, start_s, overlap = map(float, (*rates[count:], *variables[count + 2 :]))
    return LayerModel(
        classes, rates[np.array(rate_of)], weight_s, feature_s, start_s, overlap, errors, rate_of, waits=waits
    )
