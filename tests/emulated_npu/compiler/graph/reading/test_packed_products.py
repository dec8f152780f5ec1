"""Products by weights of few bits, and by integers with scales, have ONNX Runtime's values."""

from typing import Any

import numpy as np
import pytest
from quantised_networks import by_runtime, integers, network, on_npu
from small_models import node, values

from device_agents.emulated_npu.emulator_errors import EmulatorError, InvalidModel
from device_agents.emulated_npu.numpy_types import Array

X = {"x": values((2, 3, 40))}


def found_and_wanted(op: str, inputs: str, constants: dict[str, Array], **attributes: Any) -> tuple[Array, Array]:
    """Return the results of a network of one node on x, by the graph and by the runtime."""
    used = {name: array for name, array in constants.items() if name in inputs.split()}
    proto = network([node(op, inputs, "y", domain="com.microsoft", **attributes)], X, used)
    return on_npu(proto, X)[1]["y"], by_runtime(proto, X)["y"]


@pytest.mark.parametrize(
    ("bits", "block", "zeros"),
    [
        *((bits, 16, zeros) for bits in (2, 4, 8) for zeros in ("", " packed")),
        (4, 16, " numbers"),
        (4, 32, " packed"),
    ],
)
def test_products_by_blocks_of_few_bits(bits: int, block: int, zeros: str) -> None:
    """Blocks of a row have one scale, and one zero point, packed or as a number; the last block is not full."""
    columns, rows = 6, 40
    blocks = -(-rows // block)
    constants = {
        "w": integers((columns, blocks, block * bits // 8), np.uint8),
        "s": values((columns * blocks,), 1, 0.01, 0.1),
        "packed": integers((columns * -(-blocks * bits // 8),), np.uint8, 2),
        "numbers": values((columns, blocks), 3, 0, 15),
    }
    sizes = {"N": columns, "K": rows, "bits": bits, "block_size": block}
    found, wanted = found_and_wanted("MatMulNBits", f"x w s{zeros}", constants, **sizes)
    np.testing.assert_allclose(found, wanted, rtol=0, atol=2e-5 * float(np.abs(wanted).max()))


def test_an_order_of_blocks_is_refused() -> None:
    """An order of the rows, which the runtime refuses, too, is named; so is a missing attribute."""
    constants = {"w": integers((6, 3, 8), np.uint8), "s": values((18,), 1), "g": np.zeros(48, np.int32)}
    sizes = {"N": 6, "K": 40, "bits": 4, "block_size": 16}
    for inputs, attributes, why in (("x w s - g", sizes, "order of blocks"), ("x w s", {"N": 6}, "no attribute K")):
        with pytest.raises(EmulatorError) as caught:
            found_and_wanted("MatMulNBits", inputs, constants, **attributes)
        assert why in caught.value.why


@pytest.mark.parametrize(
    ("name", "shape", "needed"), [("w", (6, 2, 8), 144), ("s", (12,), 18), ("packed", (6,), 12), ("numbers", (6,), 18)]
)
def test_weights_that_contradict_the_attributes_are_refused(name: str, shape: tuple[int, ...], needed: int) -> None:
    """Weights, scales and zero points of another size than N, K, bits and block_size need are not valid."""
    constants = {"w": integers((6, 3, 8), np.uint8), "s": values((18,), 1)}
    constants[name] = integers(shape, np.uint8) if name in ("w", "packed") else values(shape, 1)
    inputs = f"x w s {name}" if name in ("packed", "numbers") else "x w s"
    with pytest.raises(InvalidModel) as refusal:
        found_and_wanted("MatMulNBits", inputs, constants, N=6, K=40, bits=4, block_size=16)
    assert f"need {needed}" in refusal.value.why


@pytest.mark.parametrize("inputs", ["x w ws", "x w ws wz", "x w ws wz b", "x w ws - b"])
def test_products_of_dynamic_integers(inputs: str) -> None:
    """The first factor becomes integers by its own range; the product is scaled, and a bias added."""
    constants = {
        "w": integers((40, 6), np.int8),
        "ws": np.float32(0.01),
        "wz": np.int8(3),
        "b": values((6,), 1),
    }
    found, wanted = found_and_wanted("DynamicQuantizeMatMul", inputs, constants)
    np.testing.assert_allclose(found, wanted, rtol=0, atol=2e-5 * float(np.abs(wanted).max()))


@pytest.mark.parametrize("inputs", ["q w qs ws", "q w qs ws qz", "q w qs ws qz wz b"])
def test_products_of_integers_as_numbers(inputs: str) -> None:
    """A product of integers is scaled by both scales, which may be those of columns, and a bias added."""
    constants = {
        "qs": np.float32(0.03),
        "qz": np.uint8(117),
        "w": integers((40, 6), np.uint8),
        "ws": values((6,), 1, 0.01, 0.1),
        "wz": np.uint8(3),
        "b": values((6,), 1),
    }
    used = {name: array for name, array in constants.items() if name in inputs.split()}
    fed = {"q": integers((2, 3, 40), np.uint8, 4)}
    proto = network([node("MatMulIntegerToFloat", inputs, "y", domain="com.microsoft")], fed, used)
    found, wanted = on_npu(proto, fed)[1]["y"], by_runtime(proto, fed)["y"]
    np.testing.assert_allclose(found, wanted, rtol=0, atol=2e-5 * float(np.abs(wanted).max()))
