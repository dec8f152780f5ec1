"""A fit as the fields of a JSON object and as text tables."""

from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

from harness.npu.fit.fitted_machine import FittedMachine
from harness.npu.fit.machine_fit import MachineFit, Parameter
from harness.text import NAME_WIDTH, Part, Table, milliseconds, printable

_SHOWN_ARRAYS = 4
_LEAST_SHOWN = 1e-5
"""Smaller numbers, in the unit that is shown, are nothing."""
_UNITS = (
    ("op/s", 1e-9, "G op/s"),
    ("byte/s", 1e-9, "GB/s"),
    ("s/byte", 1e9, "ns/byte"),
    ("s", 1e6, "µs"),
    ("", 1.0, ""),
)
NOT_IDENTIFIED = "not identified"


def json_fields(fit: MachineFit, fitted: FittedMachine) -> dict[str, Any]:
    """Return the fields of `npu fit --json`."""
    return {
        "device": fit.device,
        "preset": fitted.preset,
        "layers": fit.layers,
        "error": fit.error,
        "interval": "bootstrap over layers",
        "parameters": [_parameter(one) for one in fit.parameters],
        "array": {
            "identified": fit.array_identified,
            "rows": fit.array.rows if fit.array_identified else None,
            "columns": fit.array.columns if fit.array_identified else None,
            "packing": fit.array.packing if fit.array_identified else None,
            "alternatives": [asdict(one) for one in fit.arrays],
        },
        "fitted_keys": dict(fitted.fitted),
        "classes": [asdict(one) for one in fit.classes],
        "worst": [asdict(one) for one in fit.worst],
    }


def _parameter(parameter: Parameter) -> dict[str, Any]:
    return {
        "name": parameter.name,
        "unit": parameter.unit,
        "identified": parameter.value is not None,
        "value": parameter.value,
        "interval": [parameter.low, parameter.high],
        "from": parameter.layers,
        "why": parameter.why or None,
    }


def fit_tables(fit: MachineFit, fitted: FittedMachine) -> list[Part]:
    """Return the parameters, what the model leaves unexplained, and the facts of the fit."""
    rows = [_row(one) for one in fit.parameters]
    rows.insert(len(fit.peaks), _array_row(fit))
    classes = [
        (one.name, str(one.layers), milliseconds(one.time_s), *_shares(one.fitted, one.median, one.spread))
        for one in fit.classes
    ]
    worst = [
        (printable(one.label, 2 * NAME_WIDTH), milliseconds(one.measured_s), milliseconds(one.modelled_s))
        for one in fit.worst
    ]
    return [
        Table(("parameter", "value", "95 % interval", "layers", "reason"), rows),
        "Residuals by class of operators: (measured - modelled) / modelled",
        Table(("class", "layers", "ms", "median", "median absolute"), classes),
        "Layers with the largest residuals",
        Table(("layer", "measured ms", "modelled ms"), worst),
        tuple(_facts(fit, fitted)),
    ]


def _row(parameter: Parameter) -> tuple[str, ...]:
    scale, unit = next((scale, shown) for unit, scale, shown in _UNITS if unit == parameter.unit)
    value = NOT_IDENTIFIED if parameter.value is None else f"{_end(parameter.value, scale)} {unit}".rstrip()
    return (
        parameter.name,
        value,
        f"[{_end(parameter.low, scale)}, {_end(parameter.high, scale)}]",
        str(parameter.layers),
        parameter.why,
    )


def _end(value: float | None, scale: float) -> str:
    return "open" if value is None else f"{value * scale:.4g}" if value * scale > _LEAST_SHOWN else "0"


def _array_row(fit: MachineFit) -> tuple[str, ...]:
    others = ", ".join(str(one) for one in fit.arrays[:_SHOWN_ARRAYS])
    more = f" and {len(fit.arrays) - _SHOWN_ARRAYS} more" if len(fit.arrays) > _SHOWN_ARRAYS else ""
    if fit.array_identified:
        return "array of multipliers", str(fit.array), "", "", ""
    why = f"these explain the latencies as well: {others}{more}"
    return "array of multipliers", NOT_IDENTIFIED, "", "", why


def _shares(fitted: bool, median: float, spread: float) -> tuple[str, str]:
    return (f"{median:+.1%}", f"{spread:.1%}") if fitted else ("not fitted", "")


def _facts(fit: MachineFit, fitted: FittedMachine) -> Iterator[tuple[str, str]]:
    yield "fit", f"{fit.layers} layers of {fit.device}, median absolute residual {fit.error:.1%}"
    yield "intervals", "bootstrap over layers; for runs, inputs, outputs and accesses from the table's overhead"
    yield "machine", f"{fitted.machine.name} on top of {fitted.preset}: {', '.join(fitted.fitted)}"
