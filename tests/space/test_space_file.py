"""Space files: their content, and the errors for invalid ones."""

from pathlib import Path

import pytest
from hypothesis import given, strategies as st

from harness.errors import ConfigurationError
from harness.settings import BUILTIN_SPACES
from harness.space import space
from harness.space.axes import Choices, SizeRange
from harness.space.configuration import Convolution, Product
from harness.space.space import load_space

CONVOLUTION = 'op = "Conv"\nchannels_in = 16\nchannels_out = 32\nsize = 14\n'
LSTM = '[[layers]]\nop = "LSTM"\nsteps = 8\ndepth = 8\ncolumns = 8\n'
ONLY_FLOATS = {
    "rows = 8\ncolumns = 8": "InstanceNormalization ReduceMean ReduceMax ArgMax Expand TopK CumSum Mod OneHot",
    "channels = 8\nsize = 8": "BatchNormalization LRN Sub Div Erf Exp Log Sin Sqrt Tanh HardSwish Swish PRelu Elu Relu",
    "channels = 8\nsize = 7": "GlobalMaxPool Softplus",
}
"""Sizes, and operators of these sizes which ONNX Runtime makes floats of, or fuses with a neighbour on integers."""
PRODUCT = '[[layers]]\nop = "MatMul"\nrows = 8\ndepth = 8\ncolumns = 8\n'


def _load(folder: Path, text: str) -> str:
    path = folder / "space.toml"
    path.write_text(text)
    return str(path)


@given(st.integers(1, 500), st.integers(0, 2000), st.integers(1, 64), st.floats(0, 1))
def test_a_range_gives_multiples_within_it_and_both_ends(low: int, more: int, multiple: int, place: float) -> None:
    """Every value of a range is a multiple within it, and the ends of the axis are the ends of the range."""
    axis = SizeRange(low, low + more + multiple, multiple)
    found = axis.at(place)
    assert axis.low <= found <= axis.high and found % multiple == 0
    assert axis.at(0.0) - multiple < axis.low and axis.at(1.0) + multiple > axis.high


def test_values_are_counted_and_addressed_in_order() -> None:
    """Four values are at quarters of the axis."""
    axis = Choices((1, 3, 5, 7))
    assert [axis.at(place) for place in (0.0, 0.24, 0.25, 0.6, 0.99, 1.0)] == [1, 1, 3, 5, 7, 7]


def test_a_block_counts_its_combinations(tmp_path: Path) -> None:
    """By hand: 63 multiples of 8 from 16 to 512, three kernels, two strides: 63 * 3 * 2 = 378."""
    text = f"[[layers]]\n{CONVOLUTION}kernel = [1, 3, 5]\nstride = [1, 2]\n".replace(
        "channels_out = 32", "channels_out = {low = 16, high = 512, multiple_of = 8}"
    )
    assert load_space(_load(tmp_path, text)).count == 378


@pytest.mark.parametrize(("more", "outputs"), [("", 16), ("multiplier = 3", 48)])
def test_depthwise_blocks_keep_or_multiply_their_channels(tmp_path: Path, more: str, outputs: int) -> None:
    """A depthwise layer has as many groups as input channels, and `multiplier` output channels for each."""
    (block,) = load_space(_load(tmp_path, f'[[layers]]\n{CONVOLUTION}groups = "depthwise"\n{more}')).layers
    layer = block.at([0.5] * len(block.axes))
    assert isinstance(layer, Convolution)
    assert (layer.groups, layer.channels_out) == (16, outputs)


def test_sizes_that_do_not_fit_give_no_layer(tmp_path: Path) -> None:
    """Three groups do not divide 16 channels, and a window of 16 does not fit on an image of 14."""
    for more in ("groups = 3", "kernel = 16\nstride = 16"):
        (block,) = load_space(_load(tmp_path, f"[[layers]]\n{CONVOLUTION}{more}")).layers
        assert block.at([0.0] * len(block.axes)) is None


def test_dilated_windows_of_even_size_fit_or_give_no_layer(tmp_path: Path) -> None:
    """A window of 4 with dilation 16 spans 49 pixels; 12 pixels with 16 on either side are 44, and 17 are 49."""
    text = '[[layers]]\nop = "Conv"\nchannels_in = 8\nchannels_out = 8\nsize = {}\nkernel = 4\ndilation = 16\n'
    (narrow,) = load_space(_load(tmp_path, text.format(12))).layers
    (wide,) = load_space(_load(tmp_path, text.format(17))).layers
    assert narrow.at([0.0] * len(narrow.axes)) is None
    layer = wide.at([0.0] * len(wide.axes))
    assert isinstance(layer, Convolution) and layer.result == (1, 8, 1, 1)


def test_products_may_have_heads(tmp_path: Path) -> None:
    """Three heads of 4 x 8 by 8 x 5: 3 * 4 * 8 * 5 = 480 multiply-adds."""
    text = '[[layers]]\nop = "MatMul"\nrows = 4\ndepth = 8\ncolumns = 5\nheads = 3'
    (block,) = load_space(_load(tmp_path, text)).layers
    layer = block.at([0.0] * len(block.axes))
    assert layer == Product("MatMul", 3, 4, 8, 5, "none")
    assert layer.macs == 480


def test_built_in_spaces_are_valid() -> None:
    """Every shipped space loads; the one for common networks holds millions of layers."""
    files = Path(space.__file__).parent.glob("*.toml")
    assert sorted(BUILTIN_SPACES) == sorted(f"builtin:{path.stem}" for path in files)
    assert all(load_space(name).layers for name in BUILTIN_SPACES)
    assert load_space("builtin:common").count > 1_000_000


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "layers is missing"),
        ("layers = []", "layers"),
        ("[[layers]]\nop = 'Convolution'", "Convolution"),
        (f"[[layers]]\n{CONVOLUTION}kernels = 3", "layers number 1: kernels is unknown"),
        (f"[[layers]]\n{CONVOLUTION}kernel = 0", "kernel must be a whole number from 1"),
        (f"[[layers]]\n{CONVOLUTION}kernel = [3, 3]", "kernel is wrong: lists a value twice"),
        (f"[[layers]]\n{CONVOLUTION}kernel = true", "kernel must be a whole number"),
        (
            f"[[layers]]\n{CONVOLUTION}batch = {{low = 3, high = 4, multiple_of = 8}}",
            "batch is wrong: holds no multiple of 8",
        ),
        (f"[[layers]]\n{CONVOLUTION}batch = {{low = 3, top = 4}}", "unknown key 'top'"),
        (f"[[layers]]\n{CONVOLUTION}groups = 'channels'", "groups must be"),
        (f"[[layers]]\n{CONVOLUTION}activation = 'relu'", "activation must be one of 'none', 'Relu'"),
        (f"[[layers]]\n{CONVOLUTION}residual = 1", "residual must be one of true, false"),
        (f"[[layers]]\n{CONVOLUTION}share = 0", "share"),
        (f"[limits]\nmax_macs = 'many'\n[[layers]]\n{CONVOLUTION}", "limits.max_macs"),
        ("[[layers]]\nop = 'Gemm'\nrows = 1\ndepth = 8\ncolumns = 8\nheads = 2", "Gemm has no heads"),
        (LSTM + "precision = 'int8'", "precision of LSTM may only be float32"),
        *(
            (f"[[layers]]\nop = '{op}'\n{sizes}\nprecision = 'int8'", f"precision of {op} may only be float32")
            for sizes, ops in ONLY_FLOATS.items()
            for op in ops.split()
        ),
        (f"[[layers]]\n{CONVOLUTION}precision = 'weights'\nbatch_norm = true", "weights has no batch_norm"),
        (f"[[layers]]\n{CONVOLUTION}precision = 'activations'\nresidual = true", "activations has no residual"),
        (f"[[layers]]\n{CONVOLUTION}precision = 'int8'\nresidual = [false, true]", "int8 has no residual"),
        (PRODUCT + "precision = 'activations'", "activations only for Conv and Gemm"),
        ("layers = [", "is not valid TOML"),
    ],
)
def test_invalid_files_are_refused_with_the_place_and_the_reason(tmp_path: Path, text: str, why: str) -> None:
    """The error names the field and what it may be."""
    with pytest.raises(ConfigurationError) as caught:
        load_space(_load(tmp_path, text))
    assert why in str(caught.value)


def test_unknown_spaces_are_refused(tmp_path: Path) -> None:
    """The error for an unknown name lists the built-in spaces; the error for a missing file gives the reason."""
    with pytest.raises(ConfigurationError, match="builtin:common"):
        load_space("builtin:vison")
    with pytest.raises(ConfigurationError, match="No such file"):
        load_space(str(tmp_path / "none.toml"))


def test_a_network_that_is_not_built_in_is_an_error_when_the_space_is_read(tmp_path: Path) -> None:
    """The error comes before anything is measured and names the network that was meant."""
    text = f'networks = ["builtin:dscnn", "builtin:squeezenett"]\n[[layers]]\n{CONVOLUTION}'
    with pytest.raises(ConfigurationError, match="networks names 'builtin:squeezenett'") as raised:
        load_space(_load(tmp_path, text))
    assert "builtin:squeezenet" in raised.value.next_step
