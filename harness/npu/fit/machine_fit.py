"""`fit_machine`: the machine that explains the samples of a device, each parameter with its interval or the reason why
the samples do not identify it.

Two ideas are from public tools. Rates are found over layers of all intensities, as by the Empirical Roofline Tool. A
layer's utilisation of the array is a factor of its compute time, as in ANNETTE. Nothing else than the table is read.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from harness.array_types import Floats, Ints, Mask
from harness.errors import MeasurementError
from harness.latency.overhead import Coefficient, Overhead
from harness.lut.table import Lut
from harness.measure.progress import Observer, begin, effort_of, ignore, steps_of
from harness.measure.summary import Z_95
from harness.npu.fit.array_search import find_array
from harness.npu.fit.layer_model import FASTEST_S, Amounts, LayerModel, amounts_of, refit
from harness.npu.fit.layer_samples import PRODUCTS, LayerSamples, fitted_classes, samples_of
from harness.npu.fit.multiplier_array import MultiplierArray

FEWEST_OF_A_CLASS = 3
"""Layers of a class of code below which its rate is not fitted."""
FEWEST_BOUND = 4
"""Layers bound by a term, which makes most of their latency, below which its constant is not identified."""
FEWEST_WITH_BOTH = 8
"""Layers that compute and transfer, below which the overlap is not identified."""
WIDEST_RATE = 1.3
"""Upper over lower end of the interval of a rate or bandwidth that counts as identified."""
WIDEST_TIME = 3.0
"""Upper over lower end of the interval of a start-up or latency that counts as identified."""
WIDEST_OVERLAP = 0.5
_MOSTLY = 0.5
_WORST = 10
_NOTHING = 2.0
REPLICATES = 200
_PERCENTILES_95 = 2.5, 97.5


@dataclass(frozen=True)
class DeviceSamples:
    """What a machine is fitted to: the layers of a device, its overhead, and the spread from process to process."""

    device: str
    layers: LayerSamples
    overhead: Overhead
    repeatability: float = 0.0

    @classmethod
    def of(cls, table: Lut) -> DeviceSamples:
        """Return the samples of a table; raises CoverageError if it has too few layers."""
        overhead = table.overhead_by("extended") or table.overhead
        return cls(table.device, samples_of(table), overhead, table.repeatability)


@dataclass(frozen=True)
class Parameter:
    """A fitted parameter in `unit`, with its 95 % interval.

    `value` is None where the samples do not identify it: `why` says so, and the interval is what remains possible, with
    None for an open end. `layers` is the number of layers, or of null probes, that determine it.
    """

    name: str
    unit: str
    value: float | None
    low: float | None
    high: float | None
    layers: int
    why: str = ""


@dataclass(frozen=True)
class ClassResiduals:
    """How far the layers of a class are from the model: (measured - modelled) / modelled.

    `median` has a sign, `spread` is the median of the absolute values; `time_s` is the sum of the measured latencies.
    Layers of a class that is not `fitted` have no residuals.
    """

    name: str
    layers: int
    time_s: float
    fitted: bool
    median: float = 0.0
    spread: float = 0.0


@dataclass(frozen=True)
class LayerResidual:
    """A layer that the model explains badly."""

    label: str
    class_name: str
    measured_s: float
    modelled_s: float


@dataclass(frozen=True)
class MachineFit:
    """The machine that explains a device's samples.

    `peaks` are multiply-adds or operations per second of each class of code, with those of idle multipliers; the first
    is that of the class with most work. `array` is the best array; it is identified only if `arrays`, all that explain
    the samples as well, have its rows and columns. Bandwidths are bytes/s. `start` is the fixed time of a layer, `call`
    that of a run, `access` that of an access to external memory, in seconds.
    """

    device: str
    layers: int
    peaks: tuple[Parameter, ...]
    array: MultiplierArray
    arrays: tuple[MultiplierArray, ...]
    array_identified: bool
    weights: Parameter
    features: Parameter
    start: Parameter
    overlap: Parameter
    call: Parameter
    input_byte: Parameter
    output_byte: Parameter
    access: Parameter
    error: float
    classes: tuple[ClassResiduals, ...]
    worst: tuple[LayerResidual, ...]

    @property
    def parameters(self) -> tuple[Parameter, ...]:
        """All parameters but the array, in the order of the output."""
        memory = (self.weights, self.features, self.access)
        return (*self.peaks, *memory, self.start, self.overlap, self.call, self.input_byte, self.output_byte)

    def peak(self, *classes: str) -> float | None:
        """Return the identified peak of the first of these classes that has one, in operations per second."""
        by_name = {one.name: one.value for one in self.peaks if one.value is not None}
        return next((by_name[name] for name in classes if name in by_name), None)


def fit_machine(samples: DeviceSamples, observe: Observer = ignore) -> MachineFit:
    """Fit a machine to samples; raises MeasurementError if they identify neither a rate nor a bandwidth."""
    layers = samples.layers
    classes = fitted_classes(layers, FEWEST_OF_A_CLASS)
    if not classes:
        raise _nothing(samples.device, f"No class of operators has {FEWEST_OF_A_CLASS} layers")
    used = np.isin(np.array(layers.rate_classes), classes)
    fitted = layers.take(np.flatnonzero(used))
    effort = effort_of(len(fitted))
    begin(observe, "finding the array", effort)
    found = find_array(fitted, classes)
    work = amounts_of(fitted, classes, found.array)
    step = steps_of(observe, "finding intervals", effort=effort)
    spread = bootstrap(work, fitted.keys, found.model, samples.repeatability, step)
    peaks = _peaks(found.model, spread, work)
    weights, features = _bandwidths(found.model, spread, work)
    if all(one.value is None for one in (*peaks, weights, features)):
        raise _nothing(samples.device, "; ".join(f"{one.name}: {one.why}" for one in (*peaks, weights, features)))
    overhead, probes = samples.overhead, samples.overhead.probes
    return MachineFit(
        device=samples.device,
        layers=len(fitted),
        peaks=peaks,
        array=found.array,
        arrays=found.alternatives,
        array_identified=found.is_identified,
        weights=weights,
        features=features,
        start=_start(found.model, spread, len(fitted)),
        overlap=_overlap(found.model, spread, work),
        call=_coefficient("start-up of a run", "s", overhead.c, probes),
        input_byte=_coefficient("input", "s/byte", overhead.a, probes),
        output_byte=_coefficient("output", "s/byte", overhead.b, probes),
        access=_coefficient("latency of memory", "s", overhead.coefficients["accesses"], probes),
        error=float(np.median(np.abs(found.model.residuals(work)))),
        classes=_class_residuals(layers, fitted, found.model.residuals(work)),
        worst=_worst(fitted, work, found.model),
    )


def _nothing(device: str, why: str) -> MeasurementError:
    step = f"Measure larger layers: harness profile --device {device} --space builtin:machine, then harness lut build"
    return MeasurementError("The samples identify no rate and no bandwidth of the device", why=why, next_step=step)


def _peaks(model: LayerModel, spread: ModelIntervals, work: Amounts) -> tuple[Parameter, ...]:
    compute, _ = model.parts(work)
    bound = compute > _MOSTLY * model.latency_s(work)
    found = []
    for rate in dict.fromkeys(model.rate_of):
        members = [at for at, one in enumerate(model.rate_of) if one == rate]
        names = [model.classes[at] for at in members]
        own = bound & np.isin(work.class_of, members)
        name = PRODUCTS if PRODUCTS in names else names[0]
        at = members[0]
        found.append(_rate(name, "op/s", float(model.operation_s[at]), spread.operation_s[at], own))
    return tuple(found)


def _bandwidths(model: LayerModel, spread: ModelIntervals, work: Amounts) -> tuple[Parameter, Parameter]:
    latency_s = model.latency_s(work)
    by_weights = work.weight_bytes * model.weight_byte_s > _MOSTLY * latency_s
    by_features = work.feature_bytes * model.feature_byte_s > _MOSTLY * latency_s
    return (
        _rate("bandwidth of weights", "byte/s", model.weight_byte_s, spread.weight_byte_s, by_weights),
        _rate("bandwidth of features", "byte/s", model.feature_byte_s, spread.feature_byte_s, by_features),
    )


def _rate(name: str, unit: str, each_s: float, interval: Floats, bound: Mask) -> Parameter:
    """Return a rate from the seconds of one operation or byte; `bound` are the layers that mostly consist of it."""
    low, high = (_finite(float(bound)) for bound in interval[::-1])
    layers = int(np.count_nonzero(bound))
    why = ""
    if layers < FEWEST_BOUND:
        why = f"it dominates the latency of {layers} layers; at least {FEWEST_BOUND} are required"
    elif low is None or high is None or high > WIDEST_RATE * low:
        why = "its interval is too wide"
    return Parameter(name, unit, None if why else 1 / each_s, low, high, layers, why)


def _finite(each_s: float) -> float | None:
    """Return a rate; None if the fit went to the end of its range, because nothing limits the rate."""
    return 1 / each_s if each_s > _NOTHING * FASTEST_S else None


def _start(model: LayerModel, spread: ModelIntervals, layers: int) -> Parameter:
    low, high = map(float, spread.start_s)
    why = _why_no_time(low, high)
    return Parameter("start-up of a layer", "s", None if why else model.start_s, low, high, layers, why)


def _coefficient(name: str, unit: str, fitted: Coefficient, probes: int) -> Parameter:
    why = _why_no_time(fitted.low, fitted.high)
    return Parameter(name, unit, None if why else fitted.value, fitted.low, fitted.high, probes, why)


def _why_no_time(low: float, high: float) -> str:
    if high <= 0:
        return "no probe shows it"
    return "its interval is too wide" if low <= 0 or high > WIDEST_TIME * low else ""


def _overlap(model: LayerModel, spread: ModelIntervals, work: Amounts) -> Parameter:
    """Return the overlap; layers determine it whose shorter part is a tenth of the other at least."""
    compute, transfer = model.parts(work)
    both = np.minimum(compute, transfer) > 0.1 * np.maximum(compute, transfer)
    layers = int(np.count_nonzero(both))
    low, high = map(float, spread.overlap)
    why = ""
    if layers < FEWEST_WITH_BOTH:
        why = f"{layers} layers both compute and transfer measurably; at least {FEWEST_WITH_BOTH} are required"
    elif high - low > WIDEST_OVERLAP:
        why = "its interval is too wide"
    return Parameter("overlap", "", None if why else model.overlap, low, high, layers, why)


def _class_residuals(layers: LayerSamples, fitted: LayerSamples, residuals: Floats) -> tuple[ClassResiduals, ...]:
    """Return the residuals by class of code, the longest class first; `residuals` are of the fitted layers."""
    rows = []
    for name in sorted(set(layers.classes)):
        own, mine = layers.of_class(name), residuals[fitted.of_class(name)]
        time_s = float(layers.latency_s[own].sum())
        if not len(mine):
            rows.append(ClassResiduals(name, len(own), time_s, fitted=False))
            continue
        median, spread = float(np.median(mine)), float(np.median(np.abs(mine)))
        rows.append(ClassResiduals(name, len(own), time_s, fitted=True, median=median, spread=spread))
    return tuple(sorted(rows, key=lambda row: -row.time_s))


def _worst(layers: LayerSamples, work: Amounts, model: LayerModel) -> tuple[LayerResidual, ...]:
    """Return the layers with the largest absolute difference between latency and model, in seconds."""
    modelled_s = model.latency_s(work)
    order = np.argsort(-np.abs(layers.latency_s - modelled_s))[:_WORST]
    return tuple(
        LayerResidual(layers.labels[at], layers.classes[at], float(layers.latency_s[at]), float(modelled_s[at]))
        for at in order
    )


@dataclass(frozen=True)
class ModelIntervals:
    """95 % intervals, (2,) each: of the constants of `LayerModel`; `operation_s` is (classes, 2)."""

    operation_s: Floats
    weight_byte_s: Floats
    feature_byte_s: Floats
    start_s: Floats
    overlap: Floats


def bootstrap(
    work: Amounts,
    keys: tuple[str, ...],
    model: LayerModel,
    repeatability: float,
    step: Callable[[int, int], None],
) -> ModelIntervals:
    """Return percentile intervals over refits to layers that are drawn within each class.

    The contexts of a layer are drawn together: their times depend on each other. The scatter of the layers about the
    model holds the errors of their measurements. `repeatability`, the relative spread from process to process, is the
    same for all samples of a table and does not show in the scatter, so it is added.
    """
    random = np.random.default_rng(0)
    groups = _groups(work, keys)
    fits = []
    for number in range(REPLICATES):
        step(number, REPLICATES)
        fits.append(refit(work.take(_draw(groups, random)), model))
    shared = 1 + Z_95 * repeatability * np.array([-1.0, 1.0])

    def of(values: list[float]) -> Floats:
        return np.asarray(np.percentile(values, _PERCENTILES_95))

    return ModelIntervals(
        np.stack([of([fit.operation_s[at] for fit in fits]) * shared for at in range(len(model.classes))]),
        of([fit.weight_byte_s for fit in fits]) * shared,
        of([fit.feature_byte_s for fit in fits]) * shared,
        of([fit.start_s for fit in fits]) * shared,
        of([fit.overlap for fit in fits]),
    )


def _groups(work: Amounts, keys: tuple[str, ...]) -> list[list[Ints]]:
    """Return, for each class, the positions of each key."""
    found: defaultdict[int, defaultdict[str, list[int]]] = defaultdict(lambda: defaultdict(list))
    for at, key in enumerate(keys):
        found[int(work.class_of[at])][key].append(at)
    return [[np.array(places) for places in by_key.values()] for _, by_key in sorted(found.items())]


def _draw(groups: list[list[Ints]], random: np.random.Generator) -> Ints:
    """Return positions with as many keys of each class as there are, drawn with replacement."""
    drawn = [keys[at] for keys in groups for at in random.integers(len(keys), size=len(keys))]
    return np.concatenate(drawn)
