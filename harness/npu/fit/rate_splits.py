"""Rates by class of operators: kinds of products that compute at a rate of their own, where the samples show it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from harness.npu.fit.array_search import LIKELIHOOD, ArrayFit
from harness.npu.fit.layer_model import amounts_of, fit_layers, loss
from harness.npu.fit.layer_samples import PRODUCTS, LayerSamples, fitted_classes

MOSTLY = 0.5
"""Share of its latency from which on a layer is said to be bound by a term."""
FEWEST_BOUND = 4
"""Layers bound by a term below which its constant is not identified."""


def split_rates(samples: LayerSamples, found: ArrayFit) -> tuple[LayerSamples, ArrayFit]:
    """Return the samples and the fit with a rate of its own for every kind of product that explains more with one.

    The kind with most multiply-adds keeps the common rate. A kind needs `FEWEST_BOUND` layers that its rate decides.
    """
    work = amounts_of(samples, found.model.classes, found.array)
    compute, _ = found.model.parts(work)
    bound = (compute > MOSTLY * found.model.latency_s(work)) & samples.in_array
    kinds = sorted({samples.classes[at] for at in np.flatnonzero(bound)})
    kinds = [name for name in kinds if np.count_nonzero(bound[samples.of_class(name)]) >= FEWEST_BOUND]
    by_work = sorted(kinds, key=lambda name: -float(samples.arrays.macs[samples.of_class(name)].sum()))
    for name in by_work[1:]:
        samples, found = _split(samples, found, name)
    return samples, found


def _split(samples: LayerSamples, found: ArrayFit, name: str) -> tuple[LayerSamples, ArrayFit]:
    """Return both with a rate for this class of code if it explains more, else as they are."""
    own = samples.with_own_rate(name)
    if PRODUCTS not in own.rate_classes:
        return samples, found
    classes = fitted_classes(own, 1)
    work = amounts_of(own, classes, found.array)
    model = fit_layers(work, classes)
    before = amounts_of(samples, found.model.classes, found.array)
    errors = min(model.errors, found.model.errors, key=lambda one: one.relative)
    was, now = (
        loss(amounts, replace(one, errors=errors).latency_s(amounts), replace(one, errors=errors).errors_s(amounts))
        for one, amounts in ((found.model, before), (model, work))
    )
    return (own, replace(found, model=model)) if now < was - LIKELIHOOD else (samples, found)
