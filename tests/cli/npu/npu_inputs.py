"""Networks, machines and programs for the tests of the `harness npu` commands."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
from onnx import ModelProto, NodeProto, TensorProto, helper, numpy_helper

from device_agents.emulated_npu.isa.assembly import assemble
from device_agents.emulated_npu.isa.program import Footprint, Program
from device_agents.emulated_npu.machine import preset_text

NAMES = ("stem", "stem/relu", "body", "body/relu", "pool")
CHANNELS = 48
SIZE = 20


def _weights(name: str, shape: Sequence[int], seed: int) -> TensorProto:
    values = np.random.default_rng(seed).standard_normal(shape).astype(np.float32)
    return numpy_helper.from_array(values / np.sqrt(np.prod(shape[1:])).astype(np.float32), name)


def convolutions(names: Sequence[str] = NAMES, x: str = "picture", a: str = "a") -> ModelProto:
    """Two convolutions of 3 x 3 with activations and a pooling, which become three layers of the machine."""
    nodes = [
        helper.make_node("Conv", [x, "first"], [a], names[0], pads=[1] * 4),
        helper.make_node("Relu", [a], ["b"], names[1]),
        helper.make_node("Conv", ["b", "second"], ["c"], names[2], pads=[1] * 4),
        helper.make_node("Relu", ["c"], ["d"], names[3]),
        helper.make_node("MaxPool", ["d"], ["y"], names[4], kernel_shape=[2, 2], strides=[2, 2]),
    ]
    return _model(nodes, {x: [1, 3, SIZE, SIZE]}, {"y": [1, CHANNELS, SIZE // 2, SIZE // 2]})


def unknown_operator() -> ModelProto:
    """A convolution, and a determinant, which the machine does not support."""
    nodes = [
        helper.make_node("Conv", ["x", "first"], ["y"], "stem", pads=[1] * 4),
        helper.make_node("Det", ["m"], ["z"], "odd one"),
    ]
    return _model(nodes, {"x": [1, 3, 8, 8], "m": [4, 4]}, {"y": [1, CHANNELS, 8, 8], "z": []})


def detector() -> ModelProto:
    """Boxes and scores, and a non-maximum suppression, whose size depends on the data."""
    sizes = {"x": [1, 8, 4], "s": [1, 2, 8], "scores": [1, 2, 8]}
    most = numpy_helper.from_array(np.array([5]), "most")
    nodes = [
        helper.make_node("Relu", ["x"], ["boxes"], "relu"),
        helper.make_node("Sigmoid", ["s"], ["scores"], "sigmoid"),
        helper.make_node("NonMaxSuppression", ["boxes", "scores", "most"], ["kept"], "select"),
    ]
    known = {name: helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in sizes.items()}
    kept = helper.make_tensor_value_info("kept", TensorProto.INT64, ["n", 3])
    graph = helper.make_graph(nodes, "g", [known["x"], known["s"]], [kept, known["scores"]], [most])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


def _model(
    nodes: Sequence[NodeProto], inputs: Mapping[str, Sequence[int]], outputs: Mapping[str, Sequence[int]]
) -> ModelProto:
    used = [name for name in ("first", "second") if any(name in node.input for node in nodes)]
    shapes = {"first": (CHANNELS, 3, 3, 3), "second": (CHANNELS, CHANNELS, 3, 3)}
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in inputs.items()],
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in outputs.items()],
        [_weights(name, shapes[name], seed) for seed, name in enumerate(used)],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


def machine_text(**changes: str) -> str:
    """Return the TOML of the edge machine with some values replaced: `nb_bytes="1024"`."""
    lines = []
    for line in preset_text("edge").splitlines():
        key = line.partition(" = ")[0]
        lines.append(f"{key} = {changes.pop(key)}" if key in changes else line)
    assert not changes, f"the machine has no {', '.join(changes)}"
    return "\n".join(lines)


_FOUR_FLOATS = """
    descriptor d0, nb, float32, 1
    axis d0, 0, 4, 4
    descriptor d1, ddr, float32, 1
    axis d1, 0, 4, 4
"""
SOUND = _FOUR_FLOATS + "load target=r0:d0, first=r0:d1\nhalt\n"
FAULTY_PROGRAMS = {
    "endless loop": ("again:\njump again\n", ("loop", "budget")),
    "endless loop of loads": (
        _FOUR_FLOATS + "again:\nload target=r0:d0, first=r0:d1\njump again\n",
        ("loop", "budget"),
    ),
    "address out of NB": (
        _FOUR_FLOATS + "set r1, 4096\nload target=r1:d0, first=r0:d1\nhalt\n",
        ("instruction 5", "NB"),
    ),
    "address out of DDR": (
        _FOUR_FLOATS + "set r1, -4\nload target=r0:d0, first=r1:d1\nhalt\n",
        ("instruction 5", "DDR"),
    ),
    "deadlock": (
        "wait io, m0, 1\nwait cp, m1, 1\npost io, m1, 1\npost cp, m0, 1\nhalt\n",
        ("deadlock", "instruction 0", "instruction 1", "IO queue", "CP queue"),
    ),
    "no halt": (_FOUR_FLOATS, ("instruction 3", "HALT")),
    "slot never set": ("load target=r0:d0, first=r0:d1\nhalt\n", ("instruction 0", "slot")),
    "load between on-chip memories": (_FOUR_FLOATS + "load target=r0:d0, first=r0:d0\nhalt\n", ("LOAD",)),
}
JUMP_OUT = b"\x05\0\0\0" + (77).to_bytes(4, "little") + b"\0" * 8 + b"\x01" + b"\0" * 15
UNKNOWN_OPCODE = b"\xee" + b"\0" * 15


def program(source: str | bytes, machine: str = "edge", layer: str = "only", **footprint: int) -> bytes:
    """Return a program file of one layer from assembly text or code, for 4 KiB of DDR and of NB."""
    code = assemble(source) if isinstance(source, str) else source
    sizes = Footprint(ddr_bytes=4096, llc_bytes=0, nb_bytes=4096, sb_bytes=0, halo_bytes=0)
    layers = (0,) * (len(code) // 16)
    return Program(machine, code, (layer,), layers, (), (), replace(sizes, **footprint)).to_bytes()


def save(content: ModelProto | bytes | str, path: Path) -> Path:
    """Write a file and return its path."""
    content = content.SerializeToString() if isinstance(content, ModelProto) else content
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path
