"""The multiply-adds of nodes, and about how long they let a model take to compile or to run."""

import re

import numpy as np
import pytest
from hypothesis import given, strategies as st
from onnx import helper
from onnx_models import model_of, network_of, node, run_plain

from harness.network.assemble import assemble_network
from harness.network.effort import compile_effort, products_of, products_of_network, run_effort, side_by_side
from harness.network.network import TensorType

IMAGE = (1, 4, 5, 6)
CASES = {
    "Conv": (IMAGE, (6, 4, 1, 1), {}),
    "Conv in groups": (IMAGE, (8, 2, 3, 2), {"group": 2}),
    "Conv with strides": (IMAGE, (3, 4, 2, 2), {"strides": [2, 2]}),
    "ConvTranspose": (IMAGE, (4, 3, 2, 3), {}),
    "MatMul": ((2, 3, 5), (5, 7), {}),
    "Gemm": ((3, 5), (5, 7), {}),
    "Gemm, transposed": ((5, 3), (7, 5), {"transA": 1, "transB": 1}),
    "Einsum": ((2, 3, 4, 5), (2, 5, 4, 6), {"equation": "abcd,adce->abce"}),
    "Einsum, any axes": ((2, 3, 4), (4, 5), {"equation": "...j, jk -> ...k"}),
    "Einsum, implied result": ((4, 3), (4, 5), {"equation": "ji,jk"}),
    "Einsum, sums of one operand": ((4, 3, 2), (4, 5, 6), {"equation": "jia,jkb->ik"}),
    "Einsum, element by element": ((4, 3), (4, 3), {"equation": "ij,ij->ij"}),
}
PRODUCTS = st.lists(st.integers(0, 10**10), min_size=1, max_size=20)


@pytest.mark.parametrize("case", CASES)
def test_results_add_up_as_many_products_as_a_node_has(case: str) -> None:
    """Of ones, the results of an operator without padding add up to its number of products; a Relu has none."""
    shape, weights, attributes = CASES[case]
    nodes = [node(re.split("[ ,]", case)[0], "x w", "y", **attributes), node("Relu", "y", "z")]
    parts = nodes, {"x": shape}, ["z"], {"w": np.ones(weights, np.float32)}
    results = run_plain(model_of(*parts), {"x": np.ones(shape, np.float32)}, ["y"])
    network = network_of(*parts)
    assert products_of_network(network) == [int(results["y"].sum()), 0]
    assert list(assemble_network(network).products) == products_of_network(network)


@pytest.mark.parametrize(
    ("op", "read", "written", "products"),
    [
        ("LSTM", [(7, 2, 5), (1, 24, 5), (1, 24, 6)], (7, 1, 2, 6), 7 * 2 * 24 * (5 + 6)),
        ("DeformConv", [IMAGE, (3, 4, 2, 2), (1, 800, 4, 5), (3,)], (1, 3, 4, 5), 3 * 4 * 5 * 4 * 4),
        ("FusedConv", [IMAGE, (3, 4, 1, 1), (3,), (1, 3, 5, 6)], (1, 3, 5, 6), 3 * 30 * 4),
        ("QLinearConv", [IMAGE, (), (), (3, 4, 1, 1), (), (), (), (), (3,)], (1, 3, 5, 6), 3 * 30 * 4),
        ("Attention", [(2, 9, 8), (8, 24), (24,)], (2, 9, 8), 2 * 9 * 8 * 24 + 2 * (2 * 9 * 9 * 8)),
        ("Attention", [(2, 4, 9, 8), (2, 4, 7, 8), (2, 4, 7, 8)], (2, 4, 9, 8), 2 * (2 * 4 * 9 * 7 * 8)),
        ("MultiHeadAttention", [(2, 9, 8), (2, 7, 8), (2, 7, 8)], (2, 9, 8), 2 * (2 * 9 * 7 * 8)),
        ("MultiHeadAttention", [(2, 9, 4, 3, 8)], (2, 9, 32), 2 * (2 * 9 * 9 * 32)),
        ("MultiHeadAttention", [(2, 9, 32), (2, 7, 4, 2, 8)], (2, 9, 32), 2 * (2 * 9 * 7 * 32)),
        ("Softmax", [IMAGE], IMAGE, 0),
    ],
)
def test_products_follow_from_the_sizes_that_a_node_reads(
    op: str, read: list[tuple[int, ...]], written: tuple[int, ...], products: int
) -> None:
    """Recurrence and attention count all their matrices; offsets and summands are no weights of a convolution."""
    types = [TensorType("float32", shape) for shape in read]
    assert products_of(op, (), types, TensorType("float32", written)) == products


@pytest.mark.parametrize("past", [[], [(2, 2, 5, 8)] * 2])
def test_grouped_attention_has_as_many_products_packed_as_in_three_inputs(past: list[tuple[int, ...]]) -> None:
    """Queries, keys and values in the columns of one input have the products of three inputs."""
    attributes = [helper.make_attribute(name, count) for name, count in (("num_heads", 4), ("kv_num_heads", 2))]
    lengths, written = [(2,), ()], TensorType("float32", (2, 9, 32))
    found = [
        products_of("GroupQueryAttention", attributes, [TensorType("float32", shape) for shape in read], written)
        for read in ([(2, 9, 64), *past, *lengths], [(2, 9, 32), (2, 9, 16), (2, 9, 16), *past, *lengths])
    ]
    assert found == [2 * (2 * 9 * 9 * 32)] * 2


@given(PRODUCTS, st.lists(PRODUCTS, min_size=1, max_size=5))
def test_nodes_and_models_take_time(products: list[int], models: list[list[int]]) -> None:
    """A further node takes longer; models side by side take no less than the longest, and no longer than in turn."""
    for effort in (compile_effort, run_effort):
        assert effort([*products, 0]) > effort(products) > 0
        assert effort([*products, 10**9]) > effort([*products, 0])
    efforts = [compile_effort(model) for model in models]
    assert max(efforts) <= side_by_side(efforts) <= sum(efforts)
    assert side_by_side(efforts[:1] * 4) == pytest.approx(2 * efforts[0])
