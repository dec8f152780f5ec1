"""The features of layers and their derived sizes."""

from dataclasses import replace

import pytest
from convolutions import convolution

from harness.errors import UsageError
from harness.predictor.features.layer_features import (
    TrainingExample,
    channelwise,
    classes_of,
    code_of,
    matrix_product,
)


def test_a_convolution_by_hand() -> None:
    """Output sizes, work and bytes of a 3x3 convolution are as computed by hand."""
    layer = convolution(
        batch=2, in_channels=8, out_channels=4, size=(10, 7), kernel=(3, 3), stride=(2, 2), padding=(1, 1)
    )
    assert layer.out_size == (5, 4)  # (10 + 2 - 3) // 2 + 1, (7 + 2 - 3) // 2 + 1
    assert layer.rows == 2 * 5 * 4
    assert layer.macs == 40 * 4 * 8 * 9
    assert layer.weight_elements == 4 * 8 * 9
    assert layer.moved_bytes == 4 * (2 * 8 * 70 + 40 * 4 + 288)


def test_depthwise_convolutions_are_an_operator_of_their_own() -> None:
    """A convolution with one group per channel has its own operator, and counts its own work."""
    layer = convolution(batch=1, in_channels=8, out_channels=8, size=(4, 4), kernel=(3, 3), padding=(1, 1), groups=8)
    assert layer.operator == "DepthwiseConv"
    assert layer.macs == 16 * 8 * 9
    assert layer.columns == 1


def test_an_extra_operand_is_read_once_more() -> None:
    """An extra operand adds one more tensor of the output's size to the bytes."""
    plain = channelwise("Relu", batch=1, channels=3, in_size=(5, 5), out_size=(5, 5))
    fused = replace(plain, extra_operands=1)
    assert fused.moved_bytes - plain.moved_bytes == 3 * 25 * 4


def test_batched_products_are_groups() -> None:
    """Twelve products of (49, 32) and (32, 49) have twelve times the work and bytes of one."""
    one = matrix_product(rows=49, depth=32, columns=49)
    many = matrix_product(rows=49, depth=32, columns=49, batch=12)
    assert one.macs == 49 * 32 * 49
    assert many.macs == 12 * one.macs
    assert many.moved_bytes == 12 * one.moved_bytes


@pytest.mark.parametrize("wrong", [{"batch": 0}, {"groups": 3}, {"size": (1, 1)}])
def test_impossible_layers_are_refused(wrong: dict[str, object]) -> None:
    """Sizes below 1, negative counts and groups that do not divide the channels are refused."""
    given: dict[str, object] = {"batch": 1, "in_channels": 8, "out_channels": 4, "size": (8, 8), "kernel": (3, 3)}
    with pytest.raises(UsageError):
        convolution(**(given | wrong))  # type: ignore[arg-type]
    with pytest.raises(UsageError):
        replace(matrix_product(rows=1, depth=1, columns=1), extra_operands=-1)


@pytest.mark.parametrize("latency_s", [0.0, -1.0, float("nan"), float("inf")])
def test_an_example_needs_a_positive_finite_time(latency_s: float) -> None:
    """A latency that is zero, negative or not finite is refused."""
    with pytest.raises(UsageError, match="finite time"):
        TrainingExample(matrix_product(rows=1, depth=1, columns=1), latency_s)


def test_classes_from_coarse_to_fine() -> None:
    """Every beginning of a path is a class, and the third level names the code."""
    assert classes_of("mac/conv/dense/Relu") == ("mac", "mac/conv", "mac/conv/dense", "mac/conv/dense/Relu")
    assert code_of("mac/conv/dense/Relu/Concat") == "mac/conv/dense"
    assert code_of("Conv") == "Conv"
