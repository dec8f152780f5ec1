"""The work of layers from their keys: products that have no class of their own, and types of the tensors."""

import pytest

from harness.lut.layer_work import KeyWork, sizes_of, work_of

DEQUANTISED = (
    "DequantizeLinear(x0,c:float32[],c:uint8[]){axis=1}"
    "|DequantizeLinear(c:int8[16,3,3,3],c:float32[16],c:int8[16]){axis=0}"
)
WINDOW = "{dilations=1,1;group=1;kernel_shape=3,3;pads=1,1,1,1;strides=2,2}"
KERNELS = 16 * 3 * 9


@pytest.mark.parametrize(
    ("signature", "macs", "weight_bytes", "feature_bytes"),
    [
        (
            "k1|x0:float32[1,196,128]|Einsum(x0,c:float32[128,4,32]){equation=btd,dhe->bhte}|->t0:float32[1,4,196,32]",
            196 * 128 * 4 * 32,
            4 * 128 * 128,
            2 * 4 * 196 * 128,
        ),
        (
            "k1|x0:float32[1,4,9,8]|x1:float32[1,4,9,8]|Einsum(x0,x1){equation=bhte,bhse->bhts}|->t0:float32[1,4,9,9]",
            4 * 9 * 9 * 8,
            0,
            4 * (2 * 4 * 9 * 8 + 4 * 9 * 9),
        ),
        (
            "k1|x0:float32[100,1,64]|GRU(x0,c:float32[2,288,64],c:float32[2,288,96],c:float32[2,576]){hidden_size=96}"
            "|->t0:float32[100,2,1,96]",
            100 * 2 * 288 * (64 + 96),
            4 * 2 * (288 * (64 + 96) + 576),
            4 * 100 * (64 + 2 * 96),
        ),
        (
            f"k1|x0:uint8[1,3,96,96]|{DEQUANTISED}|Conv(t0,t1){WINDOW}|QuantizeLinear(t2,c:float32[],c:uint8[])"
            "{axis=1}|->t3:uint8[1,16,48,48]",
            48 * 48 * KERNELS,
            KERNELS + 16 * 5 + 2 * 5,
            3 * 96 * 96 + 16 * 48 * 48,
        ),
        (
            "k1|x0:float32[1,3,8,8]|QuantizeLinear(x0,c:float32[],c:uint8[]){axis=1}|->t0:uint8[1,3,8,8]",
            None,
            5,
            3 * 64 * 5,
        ),
        ("k1|x0:int64[1,7]|Gather(c:float32[1000,16],x0){axis=0}|->t0:float32[1,7,16]", None, 7 * 64, 7 * (64 + 8)),
        (
            "k1|x0:float32[3,3]|Einsum(x0,c:float32[3,4]){equation=jj,jk->jk}|->t0:float32[3,4]",
            None,
            48,
            4 * (9 + 12),
        ),
    ],
)
def test_work_is_that_of_shapes_and_types(
    signature: str, macs: int | None, weight_bytes: int, feature_bytes: int
) -> None:
    """Products are counted where their sizes are known, and each tensor counts in its own type."""
    assert work_of(signature) == KeyWork(macs, weight_bytes, feature_bytes)


@pytest.mark.parametrize("text", ["no key", "k1|x0:float32[1]|Relu(x7){}|->t0:float32[1]"])
def test_other_texts_have_no_work(text: str) -> None:
    """A text that is no key, or that contradicts itself, has no work."""
    assert work_of(text) is None


@pytest.mark.parametrize(
    ("layer", "sizes"),
    [
        (
            f"x0:uint8[1,3,96,96]|{DEQUANTISED}|Conv(t0,t1){WINDOW}|->t2:float32[1,16,48,48]",
            "1x3x96x96 -> 1x16x48x48 k3x3",
        ),
        ("x0:float32[1,8]|x1:float32[1,8]|Add(x0,x1){}|->t0:float32[1,8]", "1x8 -> 1x8"),
        ("x0:float32[1]|x1:float32[2]|x2:float32[3]|Concat(x0,x1,x2){axis=0}|->t0:float32[6]", "1, 2, … -> 6"),
        ("no layer", ""),
    ],
)
def test_layers_of_equal_operators_have_different_sizes(layer: str, sizes: str) -> None:
    """The sizes are the different shapes of the inputs, that of the result, and the window."""
    assert sizes_of(f"k1|{layer}") == sizes
