"""Networks by reference: a path, or `builtin:NAME` for one that comes with harness or its dependencies."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from harness.errors import InvalidNetwork, UsageError
from harness.network import zoo
from harness.network.network import Network
from harness.network.prepare import prepare, read_network
from harness.network.read import check_model

BUILTIN_PREFIX = "builtin:"
LIGHT_FILES = {
    "alexnet": "light_bvlc_alexnet.onnx",
    "densenet121": "light_densenet121.onnx",
    "inception_v1": "light_inception_v1.onnx",
    "inception_v2": "light_inception_v2.onnx",
    "resnet50": "light_resnet50.onnx",
    "shufflenet": "light_shufflenet.onnx",
    "squeezenet": "light_squeezenet.onnx",
    "vgg19": "light_vgg19.onnx",
    "zfnet512": "light_zfnet512.onnx",
}
"""Files of the `onnx` wheel's `backend/test/data/light` folder, read as they are."""

BUILTIN_NAMES = (*LIGHT_FILES, *zoo.NAMES)


def load_networks(references: Sequence[str], dims: Mapping[str, int] | None = None) -> list[Network]:
    """Reads networks; raises UsageError for a dimension in `dims` that none of them has."""
    networks = [load_network(reference, dims) for reference in references]
    known = {name for network in networks for name in network.symbols}
    unknown = sorted(set(dims or ()) - known)
    if unknown:
        names = ", ".join(network.name for network in networks)
        why = f"Symbolic dimensions of {names}: {', '.join(sorted(known)) or 'none'}"
        step = "Give --dim only for these"
        raise UsageError(f"No network has a dimension {unknown[0][:80]!r}", why=why[:300], next_step=step)
    return networks


def load_network(reference: str, dims: Mapping[str, int] | None = None) -> Network:
    """Reads the network that a path or `builtin:NAME` refers to; see `read_network` for what it raises.

    Dimensions in `dims` that it does not have are passed over: they may be another network's.
    """
    if not reference.startswith(BUILTIN_PREFIX):
        return read_network(Path(reference), dims)
    name = reference.removeprefix(BUILTIN_PREFIX)
    if name in LIGHT_FILES:
        from dataclasses import replace

        return replace(read_network(_light_folder() / LIGHT_FILES[name], dims), name=name)
    if name not in zoo.NAMES:
        step = f"Built in are: {', '.join(BUILTIN_NAMES)}"
        raise InvalidNetwork(f"There is no built-in network {name[:40]!r}", next_step=step)
    model = zoo.build(name)
    return prepare(check_model(name, model, model.SerializeToString(deterministic=True)), dims or {})


def _light_folder() -> Path:
    import onnx.backend.test

    return Path(onnx.backend.test.__file__).parent / "data" / "light"
