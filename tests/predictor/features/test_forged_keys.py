"""Keys of layers that no network has: a table may hold any text, and describing it takes bounded work."""

import random
import re
import tracemalloc

import pytest
from hypothesis import given, settings, strategies as st

from fuzz.mutation import mutate_text
from fuzz.tables import layer_signatures
from harness.predictor.features.key_features import describe
from harness.predictor.features.layer_arrays import layer_arrays
from harness.predictor.features.layer_features import LayerFeatures

CONV = "k1|x0:float32[1,16,8,8]|Conv(x0,c:float32[32,16,3,3])"
WINDOW = "dilations=1,1;group=1;kernel_shape=3,3;pads=1,1,1,1;strides=1,1"
RESULT = "|->t0:float32[1,32,8,8]"
FORGED = {
    "no groups": CONV + "{" + WINDOW.replace("group=1", "group=0") + "}" + RESULT,
    "groups below zero": CONV + "{" + WINDOW.replace("group=1", "group=-2") + "}" + RESULT,
    "stride of zero": CONV + "{" + WINDOW.replace("strides=1,1", "strides=0,1") + "}" + RESULT,
    "one stride for two axes": CONV + "{" + WINDOW.replace("strides=1,1", "strides=1") + "}" + RESULT,
    "pads of one axis": CONV + "{" + WINDOW.replace("pads=1,1,1,1", "pads=1,1") + "}" + RESULT,
    "kernel of three axes": CONV + "{" + WINDOW.replace("kernel_shape=3,3", "kernel_shape=3,3,3") + "}" + RESULT,
    "number of thousands of digits": CONV + "{" + WINDOW.replace("group=1", "group=" + "1" * 5000) + "}" + RESULT,
    "size of thousands of digits": "k1|x0:float32[" + "9" * 5000 + "]|Relu(x0){}|->t0:float32[1]",
    "sizes without digits": "k1|x0:float32[1,,,2]|Relu(x0){}|->t0:float32[1]",
    "empty tensor": "k1|x0:float32[1,0,3]|Relu(x0){}|->t0:float32[1,0,3]",
    "matrix product of a vector": "k1|x0:float32[1,8]|Gemm(x0,c:float32[8]){transB=1}|Relu(t0){}|->t1:float32[1,8]",
    "matrix product without a right side": "k1|x0:float32[1,8]|Gemm(x0){}|Relu(t0){}|->t1:float32[1,8]",
    "matrices with rows shorter than their columns": (
        "k1|x0:float32[3,1,2]|x1:float32[3,4,4]|MatMul(x0,x1){}|->t0:float32[3,1,4]"
    ),
    "Einsum of nothing": "k1|x0:float32[3,2]|Einsum(x0,c:float32[2,0]){equation=ij,jk}|->t0:float32[3,0]",
    "transposed along axes it lacks": "k1|x0:float32[1,8]|Transpose(x0){perm=3,7}|Relu(t0){}|->t1:float32[8,1]",
    "joined along an axis it lacks": "k1|x0:float32[1,8]|Concat(x0,x0){axis=9}|Relu(t0){}|->t1:float32[1,16]",
    "joined with another rank": "k1|x0:float32[1,8]|Concat(x0,c:float32[1]){axis=1}|Relu(t0){}|->t1:float32[1,16]",
    "input that it lacks": "k1|x0:float32[1,8]|Gemm(x0,c:float32[8,8]){}|Add(t0,x7){}|->t1:float32[1,8]",
    "input that is no number": "k1|x0:float32[1,8]|Gemm(x0,c:float32[8,8]){}|Add(xa,t0){}|->t1:float32[1,8]",
    "inputs out of order": "k1|x1:float32[1,8]|Relu(x1){}|->t0:float32[1,8]",
    "constant that is no number": "k1|x0:float32[1,8]|Reshape(x0,c:int64[2]=1e999,x){}|Relu(t0){}|->t1:float32[1,8]",
    "rank doubled by each operator": "k1|x0:float32[1,1]|"
    + "|".join(f"Gather({name},{name}){{axis=0}}" for name in ("x0", *(f"t{at}" for at in range(200))))
    + "|->t200:float32[1]",
    "size doubled by each operator": "k1|x0:float32[2,2]|"
    + "|".join(f"Concat({name},{name}){{axis=0}}" for name in ("x0", *(f"t{at}" for at in range(2000))))
    + "|->t2000:float32[1]",
    "brackets without an end": "k1|x0:float32[1]|Relu(" + "){" * 60_000 + "|->t0:float32[1]",
}
NUMBER = re.compile(r"\d+")
NUMBERS = ("0", "1", "-1", "7", "99999999999", "9" * 5000, "", "1e400", "nan", "١")
OPERATORS = (
    "Conv",
    "ConvTranspose",
    "QLinearConv",
    "Gemm",
    "MatMul",
    "Einsum",
    "Reshape",
    "Flatten",
    "Transpose",
    "Concat",
)
OPERATORS += ("RoiAlign", "ReverseSequence", "RotaryEmbedding", "GatherND", "Scatter", "ScatterND", "Expand", "PRelu")
OPERATORS += ("Gather", "Squeeze", "MaxPool", "GlobalAveragePool", "ReduceMean", "Split", "Relu", "Add")


@pytest.mark.parametrize("case", FORGED)
def test_a_key_that_contradicts_itself_is_no_layer(case: str) -> None:
    """A key whose sizes are out of range or do not fit each other has no features, and takes little memory."""
    tracemalloc.start()
    try:
        assert describe(FORGED[case]) is None
        assert tracemalloc.get_traced_memory()[1] < 20 << 20
    finally:
        tracemalloc.stop()


def _changed(key: str, draw: random.Random) -> str:
    """Return a key with a number, operator, part or argument changed along its structure, or its text."""
    kind = draw.randrange(6)
    if kind == 0:
        return mutate_text(key, draw)
    if kind <= 2:
        found = draw.choice(list(NUMBER.finditer(key)) or [re.match("", key)])
        return key[: found.start()] + draw.choice(NUMBERS) + key[found.end() :] if found else key
    if kind == 3:
        other = draw.choice(OPERATORS)
        return re.sub(r"\|[A-Z]\w+\(", lambda found: draw.choice((f"|{other}(", found[0])), key)
    mark = draw.choice("|,;")
    parts = key.split(mark)
    at = draw.randrange(len(parts))
    parts[at : at + 1] = draw.choice(([], [parts[at], draw.choice(parts)], [draw.choice(parts)]))
    return mark.join(parts)


def test_changed_keys_are_described_or_refused() -> None:
    """Keys of real layers, changed along their structure, have features that are arrays of finite numbers, or none."""
    known: list[LayerFeatures] = []

    @settings(max_examples=750, derandomize=True, database=None)
    @given(st.sampled_from(layer_signatures()), st.integers(0, 2**32), st.integers(1, 4))
    def describe_changed(key: str, seed: int, changes: int) -> None:
        draw = random.Random(seed)
        for _ in range(changes):
            key = _changed(key, draw)
        layer = describe(key)
        if layer is not None:
            known.append(layer)
            assert layer_arrays([layer]).moved_bytes[0] < 1e300

    describe_changed()
    assert 100 < len(known) < 650, f"mutations that are all alike find nothing: {len(known)}"


@settings(max_examples=150, derandomize=True, database=None)
@given(st.text(max_size=60), st.sampled_from(["", "k1|", "k1|x0:", "k1|x0:float32[1,2]|"]))
def test_any_text_is_described_or_refused(text: str, start: str) -> None:
    """Any text has features or none."""
    assert isinstance(describe(start + text), LayerFeatures | None)


def test_real_layers_are_described() -> None:
    """All layers of real networks have features: no check refuses what the program itself writes."""
    assert all(describe(key) is not None for key in layer_signatures())


@given(text=st.text("k1|x0:float32[]->t,Conv(){}c=/.-23", max_size=60))
def test_other_text_is_refused(text: str) -> None:
    """Any text gives None or a layer, never an error."""
    layer = describe(f"k1|{text}")
    assert layer is None or layer.moved_bytes > 0
    assert describe(f"k0|{text}") is None
