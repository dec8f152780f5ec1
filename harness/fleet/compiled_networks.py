"""Remember which networks an emulated device has compiled: their latencies are in its cache, and take no time again."""

import json
from collections.abc import Sequence

from harness import cache
from harness.device.inventory import Device
from harness.measure.noise.machine_noise import EMULATED
from harness.network.effort import compile_effort, products_of_network
from harness.network.network import Network

_CACHED = 1 / 32
"""The time that a network takes to cut and measure again, as a fraction of the first time, which includes compiling."""


def efforts_to_compile(device: Device, networks: Sequence[Network]) -> tuple[list[float], float]:
    """Return the effort of compiling each network, and the part of their sum that the device has not in its cache."""
    efforts = [compile_effort(products_of_network(one)) for one in networks]
    left = [_CACHED if key and cache.get(key) else 1.0 for key in _keys(device, networks)]
    needed = sum(effort * part for effort, part in zip(efforts, left, strict=True))
    return efforts, needed / sum(efforts) if efforts else 1.0


def note_compiled(device: Device, networks: Sequence[Network]) -> None:
    """Remember that a device has compiled networks."""
    for key in filter(None, _keys(device, networks)):
        cache.put(key, b"compiled")


def _keys(device: Device, networks: Sequence[Network]) -> list[str]:
    """Return the key of each network in the cache; empty keys if nothing is known."""
    code = cache.code_version("device_agents") if device.backend == EMULATED else ""
    where = json.dumps([device.board, sorted(device.options.items())], default=str)
    shapes = ([str(one.types[name]) for name in one.inputs] for one in networks)
    return [
        code and cache.key_of("compiled network", code, where, one.sha256, *read)
        for one, read in zip(networks, shapes, strict=True)
    ]
