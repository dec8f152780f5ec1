"""ONNX's own conformance cases: read or refused by name, and no wrong value on the emulated NPU."""

import re
from collections import Counter
from pathlib import Path

import pytest
from conformance import ConformanceCase, cases, float32_variants, variants
from conformance_on_npu import documented, outcome, refusal

from device_agents.emulated_npu.machine import find_machine
from harness.errors import NetworkError
from harness.network.assemble import assemble_network
from harness.network.reading.prepare import prepare
from harness.network.reading.read import check_model

STRIDE = 64
"""Every so many of the variants are compiled and executed in the suite, all of them by `make test-long`."""
READ_STRIDE = 3
"""Every so many of the variants are read by harness, and by the compiler."""
READ_SHARE = 0.72
"""Share of the variants that are read: 2,381 of 3,245, with onnx 1.23.2. Others have types without values on a device
(text, sequences, floats of 4 and 8 bits), tensors without elements, or sizes that depend on the data."""

PAGE = (Path(__file__).parents[3] / "docs" / "emulator.md").read_text(encoding="utf-8")
_COUNTS = re.search(r"^\| both \| (\d+) \| (\d+) \| 0 \| (\d+) \|$", PAGE, re.MULTILINE)


def test_every_case_is_read_or_refused_by_name() -> None:
    """No case, as it is or with its parameters as constants, ends otherwise; each refusal has a reason."""
    outcomes: Counter[str] = Counter()
    for case in [variant for whole in cases() for variant in variants(whole)][::READ_STRIDE]:
        try:
            assemble_network(prepare(check_model(case.name, case.model, b""), {}))
            outcomes["read"] += 1
        except NetworkError as error:
            assert error.why or error.next_step, case.name
            outcomes["refused"] += 1
    assert outcomes["read"] >= READ_SHARE * outcomes.total()


def test_operators_defined_by_functions_are_sent() -> None:
    """An operator whose function ONNX's own inference rejects is sent as it is."""
    (case,) = (case for case in cases() if case.name == "test_mvn")
    sent = assemble_network(prepare(check_model(case.name, case.model, b""), {}))
    assert [list(kind.shape) for kind in sent.outputs] == [list(value.shape) for value in case.outputs.values()]


@pytest.mark.parametrize("stride", [READ_STRIDE, pytest.param(1, marks=pytest.mark.long)])
def test_the_compiler_takes_the_documented_number_of_cases(stride: int) -> None:
    """The compiler takes at least as many variants as the page says; refusals name what the page lists."""
    assert _COUNTS is not None
    taken = list(float32_variants())
    refusals = [found for case in taken[::stride] if (found := refusal(case)) is not None]
    listed = set(documented(PAGE))
    assert [each for each in refusals if (each.reason, each.named) not in listed] == []
    count, right, refused = map(int, _COUNTS.groups())
    assert count == len(taken) == right + refused
    assert stride * len(refusals) <= 1.1 * refused if stride > 1 else len(refusals) <= refused
    assert 2 * right > count


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("test_mod_float32_mixed_sign_fmod_0", "right"),
        ("test_mod_float_edge_cases_fmod_0_float32_constants", "right"),
        ("test_spacetodepth_crd_mode_example", "right"),
        ("test_castlike_FLOAT_to_DOUBLE", "right"),  # the second input has no elements
        ("test_attention_4d_gqa_with_past_and_present_expanded", "right"),
        ("test_attention_4d_gqa_with_past_and_present", "right"),
        ("test_reshape_allowzero_reordered", "refused"),
        ("test_resize_downsample_scales_linear_align_corners_constants", "refused"),
    ],
)
def test_cases_that_need_care(name: str, kind: str) -> None:
    """Signs of remainders, both orders of SpaceToDepth, tensors without elements, functions, ambiguous corners."""
    (case,) = (case for case in float32_variants() if case.name == name)
    assert outcome(case, find_machine("edge")).kind == kind


def test_values_of_a_sample() -> None:
    """Every sixty-fourth variant that is not refused has ONNX's values, and a time."""
    assert _wrong(list(float32_variants())[::STRIDE]) == {}


@pytest.mark.long
def test_values_of_all_cases() -> None:
    """Every variant that is not refused has ONNX's values, and a time."""
    assert _wrong(list(float32_variants())) == {}


def _wrong(tried: list[ConformanceCase]) -> dict[str, str]:
    """Execute variants; return the outputs with wrong values by variant."""
    machine = find_machine("edge")
    found = [outcome(case, machine) for case in tried]
    kinds = Counter(each.kind for each in found)
    assert kinds["right"] > kinds["refused"]
    return {each.name: each.named for each in found if each.kind == "wrong"}
