"""External data of networks: contained in the folder of the model, and bounded by its file."""

import os
from pathlib import Path

import numpy as np
import pytest
from command_line import Harness
from onnx import ModelProto, TensorProto, helper, numpy_helper
from system_networks import MEMORY_BYTES, convolutions, model, save, value


def _external(entries: dict[str, str], count: int = 48 * 27) -> ModelProto:
    changed = convolutions()
    tensor = changed.graph.initializer[0]
    assert count == int(np.prod(tensor.dims))
    tensor.ClearField("raw_data")
    tensor.data_location = TensorProto.EXTERNAL
    for key, text in entries.items():
        tensor.external_data.add(key=key, value=text)
    return changed


def _external_case(name: str, folder: Path) -> ModelProto:
    """Writes what the case needs under `folder` (the model's own is folder/model) and returns the model."""
    own = folder / "model"
    own.mkdir()
    size = 48 * 27 * 4
    (folder / "outside.bin").write_bytes(bytes(size))
    (own / "inside.bin").write_bytes(bytes(size))
    if name == "symbolic link":
        (own / "link.bin").symlink_to(folder / "outside.bin")
    if name == "symbolic link inside":
        (own / "link.bin").symlink_to("inside.bin")
    if name == "hard link":
        os.link(folder / "outside.bin", own / "link.bin")
    if name == "linked folder":
        (own / "sub").symlink_to(folder)
    if name == "pipe":
        os.mkfifo(own / "pipe.bin")
    if name == "folder":
        (own / "sub").mkdir()
    entries = {
        "parent": {"location": "../outside.bin"},
        "parent inside": {"location": "x/../../outside.bin"},
        "absolute": {"location": str(folder / "outside.bin")},
        "backslash": {"location": "..\\outside.bin"},
        "no location": {"offset": "0"},
        "empty location": {"location": ""},
        "missing": {"location": "nowhere.bin"},
        "device": {"location": "/dev/zero"},
        "NUL": {"location": "inside.bin\0.txt"},
        "newline": {"location": "in\nside\x1b[31m.bin"},
        "long location": {"location": "a" * 10_000},
        "symbolic link": {"location": "link.bin"},
        "symbolic link inside": {"location": "link.bin"},
        "hard link": {"location": "link.bin"},
        "linked folder": {"location": "sub/outside.bin"},
        "pipe": {"location": "pipe.bin"},
        "folder": {"location": "sub"},
        "negative offset": {"location": "inside.bin", "offset": "-4096"},
        "offset past the end": {"location": "inside.bin", "offset": str(size + 4)},
        "length past the end": {"location": "inside.bin", "offset": "8", "length": str(size)},
        "length 2^50": {"location": "inside.bin", "length": str(1 << 50)},
        "length negative": {"location": "inside.bin", "length": "-1"},
        "length too short": {"location": "inside.bin", "length": "16"},
        "offset leaves too little": {"location": "inside.bin", "offset": "4096"},
        "offset not a number": {"location": "inside.bin", "offset": "four"},
        "offset of 5000 digits": {"location": "inside.bin", "offset": "9" * 5000},
    }[name]
    return _external(entries)


@pytest.mark.parametrize(
    "case",
    [
        "parent",
        "parent inside",
        "absolute",
        "backslash",
        "no location",
        "empty location",
        "missing",
        "device",
        "NUL",
        "newline",
        "long location",
        "symbolic link",
        "symbolic link inside",
        "hard link",
        "linked folder",
        "pipe",
        "folder",
        "negative offset",
        "offset past the end",
        "length past the end",
        "length 2^50",
        "length negative",
        "length too short",
        "offset leaves too little",
        "offset not a number",
        "offset of 5000 digits",
    ],
)
def test_external_data_is_contained(case: str, unchanged: Harness, tmp_path: Path) -> None:
    """External data outside the model's folder, through a link, or beyond its file is refused by tensor name."""
    network = save(_external_case(case, tmp_path), tmp_path / "model" / "net.onnx")
    unchanged("estimate", network, "--device", "null01", memory_bytes=MEMORY_BYTES).assert_refused(3, mentions=("w1",))


def _hidden_external(place: str, location: str) -> ModelProto:
    """External data where a reader that looks at initializers only does not look."""
    tensor = TensorProto(name="hidden", data_type=TensorProto.FLOAT, dims=[8], data_location=TensorProto.EXTERNAL)
    tensor.external_data.add(key="location", value=location)
    imports = [helper.make_opsetid("", 17), helper.make_opsetid("f", 1)]
    constant = helper.make_node("Constant", [], ["k"], name="k", value=tensor)
    add = helper.make_node("Add", ["x", "k"], ["y"], name="n")
    if place == "constant":
        return model([constant, add], inputs=[value("x", [1, 8])], outputs=[value("y", [1, 8])])
    if place == "function":
        function = helper.make_function("f", "F", ["x"], ["y"], [constant, add], imports)
        top = helper.make_node("F", ["x"], ["y"], domain="f", name="top")
        graph = helper.make_graph([top], "g", [value("x", [1, 8])], [value("y", [1, 8])])
        return helper.make_model(graph, functions=[function], opset_imports=imports, ir_version=9)
    indices = numpy_helper.from_array(np.arange(8, dtype=np.int64), "indices")
    tensor.name = "k"
    graph = helper.make_graph([add], "g", [value("x", [1, 8])], [value("y", [1, 8])])
    graph.sparse_initializer.append(helper.make_sparse_tensor(tensor, indices, [8]))
    return helper.make_model(graph, opset_imports=imports, ir_version=9)


@pytest.mark.parametrize("place", ["constant", "function", "sparse"])
def test_external_data_hides_nowhere(place: str, unchanged: Harness, tmp_path: Path) -> None:
    """External data of constant nodes, function bodies and sparse initializers is contained as well."""
    outside = tmp_path / "outside.bin"
    outside.write_bytes(bytes(32))
    network = save(_hidden_external(place, str(outside)), tmp_path / "net.onnx")
    unchanged("estimate", network, "--device", "null01", memory_bytes=MEMORY_BYTES).assert_refused(3)


def test_external_data_beside_the_model_works(unchanged: Harness, tmp_path: Path) -> None:
    """External data in a plain file beside the model gives the estimate of the same network with weights inside."""
    (tmp_path / "inside.bin").write_bytes(bytes(16 + 48 * 27 * 4))
    entries = {"location": "inside.bin", "offset": "16", "length": str(48 * 27 * 4)}
    network = save(_external(entries), tmp_path / "net.onnx")
    (found,) = unchanged("estimate", network, "--device", "null01", "--json").assert_ok().json["networks"]
    assert found["coverage"]["measured"] == 3
