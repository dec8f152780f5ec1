"""What a memory holds after writes, in parts."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from device_agents.emulated_npu.compiler.ordering.weight_places import HeldBytes

_SIZE = 24
_INTERVALS = st.tuples(st.integers(0, _SIZE - 1), st.integers(1, 8)).map(lambda pair: (pair[0], sum(pair)))


@given(st.lists(_INTERVALS, max_size=12), _INTERVALS)
def test_each_byte_has_what_was_written_there_last(writes: Sequence[tuple[int, int]], asked: tuple[int, int]) -> None:
    """The parts are disjoint and ordered, and agree byte by byte with an array; parts elsewhere are not touched."""
    held: HeldBytes[int] = HeldBytes()
    array: dict[int, int] = {}
    for number, (start, stop) in enumerate(writes):
        held = held.written(start, stop, number)
        array.update(dict.fromkeys(range(start, stop), number))
    found = [(at, content) for start, stop, content in held.parts for at in range(start, stop)]
    assert found == sorted(array.items())
    touched = {content for _, _, content in held.touched(*asked)}
    assert touched == {array[at] for at in range(*asked) if at in array}
