"""ONNX's conformance cases on the emulated NPU: what each variant comes to, and why some are refused."""

import re
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Literal

import numpy as np
from conformance import ConformanceCase
from onnx import numpy_helper

from device_agents.emulated_npu.compiler.graph.importer import import_model
from device_agents.emulated_npu.compiler.stages import compile_graph
from device_agents.emulated_npu.emulator_errors import EmulatorError, InvalidModel, UnsupportedOperator
from device_agents.emulated_npu.inference import compute_values, time_program
from device_agents.emulated_npu.machine import Machine

REASONS = {
    "the operator": "does not support operator",
    "an element type": "element type",
    "a parameter that the network computes": r"not a constant with known values|is not constant",
    "a shape that depends on values": "not known before the network runs",
    "a tensor without elements": "without elements",
    "more than six axes": "with more than 6 axes",
    "a mode, an attribute or an output": "",
}
"""Why variants are refused, with the words of the errors; the first reason that fits counts."""

_OPERATOR = re.compile(r"\((?P<operator>[A-Za-z0-9]+)(, part of (?P<whole>[A-Za-z0-9]+))?\)")
_ELEMENT_TYPE = re.compile(r"element type (\w+)")


@dataclass(frozen=True)
class Outcome:
    """What one variant comes to; `reason` and `named`, the operator or element type, belong to a refusal."""

    name: str
    kind: Literal["right", "wrong", "refused"]
    reason: str = ""
    named: str = ""


def refusal(case: ConformanceCase) -> Outcome | None:
    """Import a variant; return its refusal, or None if the compiler takes it."""
    try:
        import_model(case.model)
    except (UnsupportedOperator, InvalidModel) as error:
        return _refused(case, error)
    return None


def outcome(case: ConformanceCase, machine: Machine) -> Outcome:
    """Import, compile, execute and time a variant, and compare its values with those of ONNX."""
    try:
        graph = import_model(case.model)
    except (UnsupportedOperator, InvalidModel) as error:
        return _refused(case, error)
    compiled = compile_graph(graph, machine)
    weights = {tensor.name: numpy_helper.to_array(tensor) for tensor in case.model.graph.initializer}
    found = compute_values(compiled, weights, {name: case.inputs[name] for name in graph.inputs})
    assert time_program(compiled.program, machine).timing.makespan_ps >= 0
    wrong = next((name for name in case.outputs if not is_right(case, name, found[name])), None)
    return Outcome(case.name, "right") if wrong is None else Outcome(case.name, "wrong", "", wrong)


def is_right(case: ConformanceCase, name: str, found: np.ndarray) -> bool:
    """Return whether an output has the shape, the type and the values, within the tolerance of the case.

    A rounding error of the largest element is right as well: ONNX's own values of sums that cancel have such errors.
    """
    wanted = case.outputs[name]
    if not isinstance(wanted, np.ndarray) or (found.shape, found.dtype) != (wanted.shape, wanted.dtype):
        return False
    absolute = case.absolute
    if wanted.dtype == np.float32:
        largest = np.abs(wanted[np.isfinite(wanted)]).max(initial=0.0)
        absolute = max(absolute, float(np.finfo(np.float32).eps * largest))
    return np.allclose(found.astype(float), wanted.astype(float), rtol=case.relative, atol=absolute, equal_nan=True)


def refusal_table(outcomes: Iterable[Outcome]) -> list[tuple[str, int, str]]:
    """Return rows of reason, number of variants, and what they name with their numbers, the most frequent first."""
    several = list(outcomes)
    rows = []
    for reason in REASONS:
        named = Counter(each.named for each in several if each.reason == reason)
        if named:
            listed = sorted(named.items(), key=lambda item: (-item[1], item[0]))
            rows.append((reason, named.total(), ", ".join(f"{name} {count}" for name, count in listed)))
    return rows


def documented(page: str) -> Iterator[tuple[str, str]]:
    """Yield reason and name of each refusal that the table of docs/emulator.md lists."""
    for line in page.splitlines():
        cells = [cell.strip() for cell in line.strip().strip("|").split("|")]
        if len(cells) == 3 and cells[0] in REASONS:
            for entry in cells[2].split(", "):
                yield cells[0], entry.rpartition(" ")[0]


def _refused(case: ConformanceCase, error: EmulatorError) -> Outcome:
    text = f"{error.what} {error.why}"
    reason = next(reason for reason, words in REASONS.items() if re.search(words, text))
    kind, place = _ELEMENT_TYPE.search(text), _OPERATOR.search(error.what)
    if reason == "an element type" and kind is not None:
        return Outcome(case.name, "refused", reason, kind[1])
    if place is None:
        raise AssertionError(f"{case.name}: the refusal names no operator: {text}") from error
    return Outcome(case.name, "refused", reason, place["whole"] or place["operator"])
