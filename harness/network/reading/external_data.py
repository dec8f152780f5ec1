"""External data of ONNX files: confined to plain files in the folder of the model; small tensors are read."""

import math
import os
import stat
from pathlib import Path

from onnx import ModelProto, TensorProto, helper

from harness.errors import InvalidNetwork
from harness.files import open_plain
from harness.network.reading.messages import messages

_DISK_BLOCK = 512
_MOST_READ = 1 << 16
"""External tensors of more elements are weights, of which only the type is needed."""
_MOST_READ_BYTES = 32 << 20
"""So much of external tensors is read, the smallest first: what may decide shapes is small."""


def read_external_data(model: ModelProto, folder: Path | None) -> dict[Path, int]:
    """Check that external initializers lie in plain files inside the model's folder, and nothing else is external.

    Reads small ones, and returns the size of each file on the disk. Raises InvalidNetwork.
    """
    external = [tensor for tensor in model.graph.initializer if tensor.data_location == TensorProto.EXTERNAL]
    files, left_bytes = dict[Path, int](), _MOST_READ_BYTES
    for tensor in sorted(external, key=lambda tensor: math.prod(tensor.dims)):
        path, size = _read_external_tensor(tensor, folder, left_bytes)
        files[path] = size
        left_bytes -= len(tensor.raw_data)
    for message in messages([*model.graph.sparse_initializer, *model.graph.node, *model.functions]):
        if isinstance(message, TensorProto) and message.data_location == TensorProto.EXTERNAL:
            why = "Only initializers may keep their data in another file"
            raise InvalidNetwork(f"Tensor {message.name[:80]!r} of a node refers to external data", why=why)
    return files


def _read_external_tensor(tensor: TensorProto, folder: Path | None, left_bytes: int) -> tuple[Path, int]:
    """Return the file of a tensor's data and its size on the disk, where holes take no room; raises InvalidNetwork.

    Values that may decide shapes become part of the tensor, if they take no more than `left_bytes`.
    """
    entries = {entry.key: entry.value for entry in tensor.external_data}
    location = entries.get("location", "")

    def refuse(why: str) -> InvalidNetwork:
        what = f"External data of tensor {tensor.name[:80]!r} is refused"
        return InvalidNetwork(what, why=why, next_step="Keep external data in plain files in the folder of the model")

    if folder is None:
        raise refuse("The network is held in memory, without a folder")
    plain = location.isprintable() and "\\" not in location and ".." not in Path(location).parts
    if not location or os.path.isabs(location) or not plain:
        raise refuse(f"Its location {location[:80]!r} is not a relative path inside the model's folder")
    path = folder / location
    try:
        status = path.lstat()
        # A link in a circle cannot be resolved: Python 3.12 and earlier raise RuntimeError.
        is_plain = stat.S_ISREG(status.st_mode) and status.st_nlink == 1
        inside = is_plain and path.resolve().is_relative_to(folder.resolve())
    except OSError as error:
        raise refuse(f"{location[:80]!r}: {error.strerror}") from error
    if not inside:
        raise refuse(f"{location[:80]!r} is a link or not a plain file inside the model's folder")
    try:
        needed = tensor_bytes(tensor)
        offset, length = int(entries.get("offset", 0)), int(entries.get("length", needed))
    except (KeyError, ValueError) as error:
        raise refuse("Its offset, length or element type is not valid") from error
    if min(offset, needed) < 0 or length != needed or offset + length > status.st_size:
        why = f"It needs {needed} bytes; stated are {length} at {offset} of a file of {status.st_size} bytes"
        raise refuse(why)
    if math.prod(tensor.dims) <= _MOST_READ and needed <= left_bytes:
        try:
            with open_plain(path) as file:
                file.seek(offset)
                tensor.raw_data = file.read(needed)
        except OSError as error:
            raise refuse(f"{location[:80]!r}: {error.strerror}") from error
        tensor.ClearField("data_location")
        tensor.ClearField("external_data")
    return path, min(status.st_size, status.st_blocks * _DISK_BLOCK)


def tensor_bytes(tensor: TensorProto) -> int:
    """Return the size of a tensor's data in bytes; raises ValueError for text and KeyError for unknown types."""
    elements = int(math.prod(tensor.dims))
    if tensor.data_type in (TensorProto.INT4, TensorProto.UINT4, TensorProto.FLOAT4E2M1):
        return -(-elements // 2)
    if tensor.data_type == TensorProto.STRING:
        raise ValueError("no fixed size")
    return elements * int(helper.tensor_dtype_to_np_dtype(tensor.data_type).itemsize)
