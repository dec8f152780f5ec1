"""Which array of multipliers the latencies show: every candidate is fitted, and those that explain as much are kept."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from harness.npu.fit.layer_model import LayerModel, amounts_of, fit_again, fit_layers, loss
from harness.npu.fit.layer_samples import PRODUCTS, LayerSamples
from harness.npu.fit.multiplier_array import NO_STEPS, MultiplierArray, candidates

FEWEST_PRODUCTS = 8
"""Products of matrices below which no array is searched."""
LIKELIHOOD = 3.0
"""Arrays whose loss exceeds the least one by less explain as much: half of the 95 % quantile of chi² with two degrees
of freedom, the profile likelihood interval of rows and columns."""
_FINALISTS = 16
_SLOWER, _FASTER, _STEP = 2.0, 24.0, 1.03


@dataclass(frozen=True)
class ArrayFit:
    """The array that explains the latencies best, its model, and all arrays that explain them as well."""

    array: MultiplierArray
    model: LayerModel
    alternatives: tuple[MultiplierArray, ...]

    @property
    def is_identified(self) -> bool:
        """Whether no other array explains the latencies as well, and the steps are visible."""
        return self.array != NO_STEPS and self.alternatives == (self.array,)


def find_array(samples: LayerSamples, classes: tuple[str, ...]) -> ArrayFit:
    """Return the array and the model with the least loss.

    A quick search fits only the rates of products; the model is fitted wholly for the best arrays of it, and compared
    with the same errors of layers.
    """
    plain = fit_layers(amounts_of(samples, classes, NO_STEPS), classes)
    if np.count_nonzero(samples.in_array) < FEWEST_PRODUCTS:
        return ArrayFit(NO_STEPS, plain, (NO_STEPS,))
    quick = _quick_losses(samples, classes, plain)
    fits = {NO_STEPS: plain}
    for array in sorted(quick, key=quick.__getitem__)[:_FINALISTS]:
        fits[array] = fit_again(amounts_of(samples, classes, array), _scaled(plain, samples, array))
    errors = min((model.errors for model in fits.values()), key=lambda one: one.relative)
    losses = {}
    for array, model in fits.items():
        work = amounts_of(samples, classes, array)
        same = replace(model, errors=errors)
        losses[array] = loss(work, model.latency_s(work), same.errors_s(work))
    best = min(losses, key=losses.__getitem__)
    return ArrayFit(best, fits[best], tuple(sorted(one for one in fits if losses[one] <= losses[best] + LIKELIHOOD)))


def _scaled(model: LayerModel, samples: LayerSamples, array: MultiplierArray) -> LayerModel:
    """Return the model with rates of products that count idle multipliers, to start from."""
    without, within = (amounts_of(samples, model.classes, one).operations for one in (NO_STEPS, array))
    factor = float(np.median((without / within)[samples.in_array]))
    is_product = np.array([name == PRODUCTS for name in model.classes])
    return replace(model, operation_s=np.where(is_product, factor, 1.0) * model.operation_s)


def _quick_losses(samples: LayerSamples, classes: tuple[str, ...], model: LayerModel) -> dict[MultiplierArray, float]:
    """Return the loss of each array with the best rate of each class, everything else as in `model`."""
    products = samples.take(np.flatnonzero(samples.in_array))
    work = amounts_of(products, classes, NO_STEPS)
    _, transfer = model.parts(work)
    members = [work.class_of == at for at in sorted(set(work.class_of.tolist()))]
    steps = int(np.log(_SLOWER * _FASTER) / np.log(_STEP))
    factors = np.geomspace(1 / _FASTER, _SLOWER, steps)[:, None]

    def best_loss(array: MultiplierArray) -> float:
        compute = factors * (array.operations(products.arrays) * model.operation_s[work.class_of])
        shorter = np.minimum(compute, transfer)
        modelled = model.start_s + compute + transfer - model.overlap * shorter
        scale = model.errors.of(work, shorter)
        lost = np.log1p(((work.latency_s - modelled) / scale) ** 2) + np.log(scale)
        return float(sum(lost[:, member].sum(axis=1).min() for member in members))

    return {array: best_loss(array) for array in candidates()}
