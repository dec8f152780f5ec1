"""Cumulative sums, reversed sequences, Range and ConstantOfShape."""

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from onnx import TensorProto, helper
from small_models import imported, model, node, values

from device_agents.emulated_npu.compiler.graph.importer import import_model
from device_agents.emulated_npu.emulator_errors import UnsupportedOperator


@given(st.lists(st.integers(1, 9), min_size=1, max_size=3), st.data())
@settings(max_examples=48)
def test_cumulative_sums(shape: list[int], data: st.DataObject) -> None:
    """Sums along any axis, in both directions, with the element itself or without."""
    axis = data.draw(st.integers(-len(shape), len(shape) - 1))
    flags = {"exclusive": data.draw(st.integers(0, 1)), "reverse": data.draw(st.integers(0, 1))}
    dtype = data.draw(st.sampled_from([np.float32, np.int64, np.int32]))
    x = values(shape, low=-9, high=9).astype(dtype)
    imported(model([node("CumSum", "x a", "y", **flags)], {"x": x}, {"a": np.array(axis)}), {"x": x})


@given(st.data(), st.integers(0, 1), st.integers(1, 5), st.integers(1, 4))
@settings(max_examples=30)
def test_reversed_sequences(data: st.DataObject, time: int, steps: int, several: int) -> None:
    """Each sequence of the batch is reversed up to its length; what follows stays."""
    lengths = np.array(data.draw(st.lists(st.integers(1, steps), min_size=several, max_size=several)))
    rest = data.draw(st.sampled_from([(), (3,), (2, 3)]))
    x = values(((several, steps) if time else (steps, several)) + rest)
    made = node("ReverseSequence", "x l", "y", time_axis=time, batch_axis=1 - time)
    imported(model([made], {"x": x}, {"l": lengths}), {"x": x})


def test_lengths_of_reversed_sequences_must_be_constant() -> None:
    """The lengths decide where elements lie."""
    feeds = {"x": values((4, 2)), "l": np.array([2, 3])}
    with pytest.raises(UnsupportedOperator) as refusal:
        import_model(model([node("ReverseSequence", "x l", "y", time_axis=0, batch_axis=1)], feeds))
    assert "sequence_lens is not a constant" in refusal.value.why


def test_a_range_of_stated_length() -> None:
    """A Range whose length the model states is computed from its first element and its step."""
    feeds = {"a": np.array(2.5, np.float32), "b": np.array(6.0, np.float32), "d": np.array(1.5, np.float32)}
    proto = model([node("Range", "a b d", "t"), node("Neg", "t", "y")], feeds)
    proto.graph.value_info.append(helper.make_tensor_value_info("t", TensorProto.FLOAT, [3]))
    imported(proto, feeds)


def test_a_filled_tensor_of_stated_shape() -> None:
    """A ConstantOfShape whose shape the model states needs no value of its input."""
    feeds = {"s": np.array([2, 3]), "x": values((2, 3))}
    value = helper.make_tensor("v", TensorProto.FLOAT, [1], [2.5])
    proto = model([node("ConstantOfShape", "s", "t", value=value), node("Add", "t x", "y")], feeds)
    proto.graph.value_info.append(helper.make_tensor_value_info("t", TensorProto.FLOAT, [2, 3]))
    imported(proto, feeds)
