"""The array of multipliers that latencies show: fit every candidate, keep the best and all that explain as much."""

import math
from dataclasses import dataclass, replace

import numpy as np

from harness.array_types import Singles
from harness.measure.summary import MAD_TO_SIGMA
from harness.npu.fit.layer_model import (
    LEAST_ERROR,
    MOST_ERROR,
    Amounts,
    LayerModel,
    amounts_of,
    fit_again,
    fit_layers,
    loss,
    tied,
)
from harness.npu.fit.layer_samples import PRODUCTS, WINDOWS, LayerSamples
from harness.npu.fit.multiplier_array import NO_STEPS, MultiplierArray, candidates

FEWEST_PRODUCTS = 8
"""Products of matrices below which no array is searched."""
LIKELIHOOD = 6.0
"""An array explains as much as the best one if its loss is higher by at most this. Half of the 95 % quantile of chi²
with two degrees of freedom, the profile likelihood interval of rows and columns, is 3; layers do not err
independently."""
LEAST_DIFFERENCE = 0.1
"""Relative difference of two rates below which classes share one."""
_FINALISTS = 16
_ROUNDS = 4
_SLOWER, _FASTER, _STEP = 2.0, 24.0, 1.015


@dataclass(frozen=True)
class ArrayFit:
    """The array that explains the latencies best, its model, and all arrays that explain them as well."""

    array: MultiplierArray
    model: LayerModel
    alternatives: tuple[MultiplierArray, ...]

    @property
    def is_identified(self) -> bool:
        """Whether all arrays that explain the latencies as well have the same rows and columns, and show steps."""
        return self.array != NO_STEPS and len({(one.rows, one.columns) for one in self.alternatives}) == 1


def find_array(samples: LayerSamples, classes: tuple[str, ...]) -> ArrayFit:
    """Return the array and the model with the lowest loss.

    A quick search fits only the rates of products; the model is fitted wholly for the best arrays of it. Its transfers
    and overlap are those of the best array so far, so it is repeated until the best array stays the same. The errors of
    an array are those that its own residuals show.
    """
    plain = fit_layers(amounts_of(samples, classes, NO_STEPS), classes)
    if np.count_nonzero(samples.in_array) < FEWEST_PRODUCTS:
        return ArrayFit(NO_STEPS, plain, (NO_STEPS,))
    fits = {NO_STEPS: plain}
    losses = {NO_STEPS: _loss(samples, NO_STEPS, plain)}
    best = NO_STEPS
    for _ in range(_ROUNDS):
        quick = _quick_fits(samples, replace(fits[best], operation_s=plain.operation_s, rate_of=plain.rate_of))
        for array in sorted(quick, key=lambda one: quick[one].loss)[:_FINALISTS]:
            for waits in (False, True):
                model = fit_again(amounts_of(samples, classes, array), replace(quick[array].model, waits=waits))
                found = _loss(samples, array, model)
                if array not in fits or found < losses[array]:
                    fits[array], losses[array] = model, found
        before, best = best, min(losses, key=losses.__getitem__)
        if best == before:
            break
    alternatives = tuple(sorted(one for one in fits if losses[one] <= losses[best] + LIKELIHOOD))
    return ArrayFit(best, _with_one_rate(fits[best], amounts_of(samples, classes, best)), alternatives)


def _loss(samples: LayerSamples, array: MultiplierArray, model: LayerModel) -> float:
    work = amounts_of(samples, model.classes, array)
    return loss(work, model.latency_s(work), model.errors_s(work))


def _with_one_rate(model: LayerModel, work: Amounts) -> LayerModel:
    """Return the model with one rate for products and windows, unless two rates that differ explain more."""
    if not {PRODUCTS, WINDOWS} <= set(model.classes):
        return model
    fits = [fit_again(work, tied(model, *pair)) for pair in ((PRODUCTS, WINDOWS), (WINDOWS, PRODUCTS))]
    losses = [loss(work, one.latency_s(work), one.errors_s(work)) for one in (*fits, model)]
    at = int(np.argmin(losses[:2]))
    one, other = (model.operation_s[model.classes.index(name)] for name in (PRODUCTS, WINDOWS))
    differ = abs(math.log(one / other)) > LEAST_DIFFERENCE
    return model if differ and losses[2] < losses[at] - LIKELIHOOD else fits[at]


@dataclass(frozen=True)
class _QuickFit:
    """The least loss of an array, and the model with the rates of products that give it."""

    loss: float
    model: LayerModel


def _quick_fits(samples: LayerSamples, model: LayerModel) -> dict[MultiplierArray, _QuickFit]:
    """Return the best rates of products on each array; transfer, start-up and overlap are `model`'s.

    Seven digits are enough: the best arrays are fitted again.
    """
    products = samples.take(np.flatnonzero(samples.in_array))
    work = amounts_of(products, model.classes, NO_STEPS)
    doubles = model.parts(work)[1], work.latency_s, work.stderr_s
    transfer, latency_s, stderr_s = (one.astype(np.float32) for one in doubles)
    members = {at: work.class_of == at for at in sorted(set(work.class_of.tolist()))}
    steps = int(np.log(_SLOWER * _FASTER) / np.log(_STEP))
    factors = np.geomspace(1 / _FASTER, _SLOWER, steps, dtype=np.float32)[:, None]

    def class_losses(off: Singles, modelled: Singles, shorter: Singles, stderr_s: Singles) -> Singles:
        """Return the loss at each rate of one class, with the error that its residuals show; (rates, layers)."""
        shown = MAD_TO_SIGMA * np.median(off / modelled, axis=1, keepdims=True)
        variance = (np.clip(shown, LEAST_ERROR, MOST_ERROR) * modelled) ** 2 + stderr_s**2
        variance += (model.errors.overlap * shorter) ** 2
        # log(1 + off² / variance) + log(variance) / 2, with one logarithm: they take most of the time of a search.
        return np.asarray(np.log((variance + off**2) / np.sqrt(variance)).sum(axis=1))

    def quick_fit(array: MultiplierArray) -> _QuickFit:
        compute = factors * (array.operations(products.arrays) * model.operation_s[work.class_of]).astype(np.float32)
        shorter = np.minimum(compute, transfer)
        hidden = np.float32(model.overlap) * shorter
        if model.waits:
            hidden *= array.after_first(products.arrays).astype(np.float32)
        modelled = np.float32(model.start_s) + compute + transfer - hidden
        off = np.abs(latency_s - modelled)
        operation_s, least = model.operation_s.copy(), 0.0
        for at, own in members.items():
            losses = class_losses(off[:, own], modelled[:, own], shorter[:, own], stderr_s[own])
            operation_s[at] *= float(factors[np.argmin(losses), 0])
            least += float(losses.min())
        return _QuickFit(least, replace(model, operation_s=operation_s))

    return {array: quick_fit(array) for array in candidates()}
