"""ONNX's conformance cases are read, or refused by name."""

from __future__ import annotations

from collections import Counter

import conformance

from harness.errors import NetworkError
from harness.network.assemble import assemble_network
from harness.network.reading.prepare import prepare
from harness.network.reading.read import check_model

EVERY = 3
"""The suite reads every third case; all of them take twelve seconds."""
READ_SHARE = 0.72
"""Share of the cases that are read: 2,381 of 3,245, with onnx 1.23.2. Others have types without values on a device
(text, sequences, floats of 4 and 8 bits), tensors without elements, or sizes that depend on the data."""


def test_every_case_is_read_or_refused_by_name() -> None:
    """No case, as it is or with its parameters as constants, ends otherwise; each refusal has a reason."""
    outcomes: Counter[str] = Counter()
    cases = [variant for case in conformance.cases() for variant in conformance.variants(case)][::EVERY]
    for case in cases:
        try:
            assemble_network(prepare(check_model(case.name, case.model, b""), {}))
            outcomes["read"] += 1
        except NetworkError as error:
            assert error.why or error.next_step, case.name
            outcomes["refused"] += 1
    assert outcomes["read"] >= READ_SHARE * len(cases)


def test_operators_defined_by_functions_are_sent() -> None:
    """An operator whose function ONNX's own inference rejects is sent as it is."""
    (case,) = (case for case in conformance.cases() if case.name == "test_mvn")
    sent = assemble_network(prepare(check_model(case.name, case.model, b""), {}))
    assert [list(kind.shape) for kind in sent.outputs] == [list(value.shape) for value in case.outputs.values()]
