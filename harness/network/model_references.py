"""Networks by reference: a path, `builtin:NAME` for one that ships with harness, or a model in memory."""

from __future__ import annotations

import contextlib
import os
import re
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Union

from harness.errors import InvalidNetwork, NetworkError, UsageError
from harness.network import zoo
from harness.network.network import Network
from harness.settings import BUILTIN_SPACES
from harness.text import printable

if TYPE_CHECKING:
    from onnx import ModelProto

    from harness.network.reading.read import ModelFile

BUILTIN_PREFIX = "builtin:"
_LIGHT_NAMES = "bvlc_alexnet densenet121 inception_v1 inception_v2 resnet50 shufflenet squeezenet vgg19 zfnet512"
LIGHT_FILES = {name.removeprefix("bvlc_"): f"light_{name}.onnx" for name in _LIGHT_NAMES.split()}
"""Files of the `onnx` wheel's `backend/test/data/light` folder, read as they are."""

BUILTIN_NAMES = (*LIGHT_FILES, *zoo.NAMES)
_UNSAFE = re.compile(r"[^A-Za-z0-9._-]+")


@dataclass(frozen=True)
class ModelContent:
    """A network held in memory: the bytes of its ONNX file, and the name that results carry."""

    name: str
    content: bytes = field(repr=False)


ModelReference = str | ModelContent
"""A path, `builtin:NAME` or a network in memory, as requests hold it."""
Model = Union[ModelReference, bytes, os.PathLike[str], "ModelProto"]
Models = Model | Sequence[Model]


def model_references(models: Models) -> tuple[ModelReference, ...]:
    """Return one network, or a list of networks, as references that can be compared and sent to another process.

    Raises UsageError for anything other than a path, `builtin:NAME`, an `onnx.ModelProto` or the bytes of an ONNX file.
    """
    if isinstance(models, Sequence) and not isinstance(models, (str, bytes)):
        return tuple(map(model_reference, models))
    return (model_reference(models),)


def model_reference(model: Model) -> ModelReference:
    """Return one network as a reference; raises UsageError as `model_references`."""
    if isinstance(model, (str, ModelContent)):
        return model
    if isinstance(model, os.PathLike):
        return os.fspath(model)
    if isinstance(model, bytes):
        return ModelContent("network", model)
    if not (hasattr(model, "SerializeToString") and hasattr(model, "graph")):
        step = "Give a path, builtin:NAME, an onnx.ModelProto, the bytes of an ONNX file, or a list of these"
        raise UsageError(f"{type(model).__name__} is not a network", next_step=step)
    from google.protobuf.message import EncodeError

    name = _UNSAFE.sub("_", model.graph.name)[:80].strip("._") or "network"
    try:
        return ModelContent(name, model.SerializeToString(deterministic=True))
    except (ValueError, EncodeError) as error:
        step = "Save it with its weights as external data, and give the path"
        raise InvalidNetwork(f"{name} is too large to hold in memory", why=str(error)[:300], next_step=step) from error


def load_network(
    model: Model,
    dims: Mapping[str, int] | None = None,
    batch: int | None = None,
    note: Callable[[str], None] = lambda _: None,
) -> Network:
    """Read one network; raises the errors of `read_model` and `prepare`, each with the name of the file.

    Dimensions in `dims` that the network does not have are ignored: they may belong to another network. `batch` sets
    the leading dimension of all inputs, even if it is fixed; `note` receives a line where its rows cannot be compared
    with those of the network in the file. Raises UnsupportedNetwork for a network that has no such batch.
    """
    reference = model_reference(model)
    with naming(reference):
        network, reason = _network(reference, dims or {}, batch)
    note_unchecked(reference, batch, reason, note)
    return replace(network, file=shown(reference))


@contextlib.contextmanager
def naming(reference: ModelReference) -> Iterator[None]:
    """Name the file in the errors about it."""
    file = shown(reference)
    try:
        yield
    except NetworkError as error:
        if error.what.startswith(file):
            raise
        raise type(error)(
            f"{file}: {error.what}", why=error.why, next_step=error.next_step, unset=error.unset
        ) from error


def note_unchecked(reference: ModelReference, batch: int | None, reason: str, note: Callable[[str], None]) -> None:
    """Pass a line to `note` if there is a reason why the rows of another batch were not compared."""
    if reason:
        note(f"not checked: {shown(reference)}: rows with a batch of {batch} were not compared: {reason}")


def is_builtin(reference: ModelReference) -> bool:
    """Return whether a network ships with the program: the others come from files, which are not trusted."""
    return isinstance(reference, str) and reference.startswith(BUILTIN_PREFIX)


def shown(reference: ModelReference) -> str:
    """Return the name by which messages refer to a network: its path, `builtin:NAME`, or its name in memory."""
    return printable(reference.name if isinstance(reference, ModelContent) else reference, 200)


def stem_of(reference: ModelReference) -> str:
    """Return the name that results carry."""
    if isinstance(reference, ModelContent):
        return reference.name
    if is_builtin(reference):
        return reference.removeprefix(BUILTIN_PREFIX)
    return printable(Path(reference).stem, 200)


@contextlib.contextmanager
def model_path(reference: ModelReference) -> Iterator[Path]:
    """Give the path of a network's file, a temporary one if it has none; raises the errors of `load_network`."""
    if isinstance(reference, str) and not is_builtin(reference):
        yield Path(reference)
        return
    with tempfile.TemporaryDirectory(prefix="harness-") as folder:
        path = Path(folder) / "network.onnx"
        if isinstance(reference, ModelContent):
            path.write_bytes(reference.content)
        else:
            path.write_bytes(_builtin(reference).model.SerializeToString())
        yield path


def _network(reference: ModelReference, dims: Mapping[str, int], batch: int | None) -> tuple[Network, str]:
    from harness.network.reading.batch import rebatch  # not loaded for networks that are in the cache
    from harness.network.reading.batch_check import check_rows
    from harness.network.reading.limited_reading import prepared, read_network

    if isinstance(reference, ModelContent):
        return read_network((reference.name, reference.content), dims, batch)
    if not is_builtin(reference):
        return read_network(Path(reference), dims, batch)
    network = prepared(_builtin(reference), dims, batch)  # it ships with the program: no file to protect against
    found = rebatch(network, batch) if batch else None
    return (network, "") if found is None or found.network is network else (found.network, check_rows(network, found))


def _builtin(reference: str) -> ModelFile:
    from harness.network.reading.read import check_model, read_model

    name = reference.removeprefix(BUILTIN_PREFIX)
    if name in LIGHT_FILES:
        import onnx

        folder = Path(onnx.__file__).parent / "backend" / "test" / "data" / "light"
        return replace(read_model(folder / LIGHT_FILES[name]), name=name)
    if reference in BUILTIN_SPACES:
        step = f"Measure its layers with `harness profile --space {reference}`; here, name a network"
        raise InvalidNetwork(f"{reference} is a space of layers, not a network", next_step=step)
    if name not in zoo.NAMES:
        step = f"Built-in networks: {', '.join(BUILTIN_NAMES)}"
        raise InvalidNetwork(f"There is no built-in network {name[:40]!r}", next_step=step)
    built = zoo.build(name)
    return check_model(name, built, built.SerializeToString(deterministic=True))
