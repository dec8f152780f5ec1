"""How many bytes of its constants a network reads."""

import numpy as np
from onnx import NodeProto, TensorProto
from onnx_models import model_of, node, prepared

from harness.network.network import Network

TABLE, MATRIX = np.ones((1000, 8), np.float32), np.ones((8, 4), np.float32)
ROW_BYTES = 8 * 4


def embedding(*further: NodeProto) -> Network:
    """Return a network that gathers 3 rows of a table of 1,000 and multiplies them by a matrix, with further nodes."""
    nodes = [node("Gather", "table ids", "rows"), node("MatMul", "rows matrix", "y"), *further]
    inputs = {"ids": (3,), **{one.input[1]: (8, 1) for one in further}}
    outputs = [one.output[0] for one in nodes[1:]]
    constants = {"table": TABLE, "matrix": MATRIX}
    return prepared(model_of(nodes, inputs, outputs, constants, types={"ids": TensorProto.INT64}))


def test_a_gather_reads_the_rows_that_it_returns() -> None:
    """Of a table of embeddings only the gathered rows count, so a small language model may run from the caches."""
    network = embedding()
    assert network.constant_bytes(network.nodes) == 3 * ROW_BYTES + MATRIX.nbytes


def test_a_table_counts_in_full_if_any_node_reads_all_of_it() -> None:
    """The size of a constant is the most that one of its readers reads, counted once."""
    network = embedding(node("MatMul", "table x", "products"))
    assert network.constant_bytes(network.nodes) == TABLE.nbytes + MATRIX.nbytes


def test_an_input_counts_as_loaded_if_all_of_it_is_read() -> None:
    """An input of which a reader slices a part, or over whose pixels a convolution strides, need not be loaded."""
    ends = {"first": np.array([0], np.int64), "last": np.array([1], np.int64)}
    kernel = {"kernel": np.ones((4, 2, 1, 1), np.float32)}
    size = 2 * 8 * 8 * 4
    cases = [
        ([node("Relu", "x", "y")], {}, size),
        ([node("Slice", "x first last", "y")], ends, 0),
        ([node("Relu", "x", "y"), node("Slice", "x first last", "z")], ends, 0),
        ([node("Conv", "x kernel", "y", kernel_shape=[1, 1], strides=[2, 2])], kernel, 0),
        ([node("Conv", "x kernel", "y", kernel_shape=[1, 1])], kernel, size),
    ]
    for nodes, constants, expected in cases:
        network = prepared(model_of(nodes, {"x": (1, 2, 8, 8)}, [one.output[0] for one in nodes], constants))
        assert network.whole_input_bytes == expected
