"""Networks and devices of requests: what several devices or attempts need is read once."""

import contextlib
import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from harness.device.inventory import Device, load_inventory
from harness.errors import HarnessError
from harness.measure.request import ProfileRequest
from harness.network.network_list import NetworkList


@dataclass
class _Reading:
    """A list of networks, None until it was read, and the lines about it."""

    lock: threading.Lock = field(default_factory=threading.Lock)
    found: NetworkList | None = None
    lines: list[str] = field(default_factory=list)

    def forwarding_to(self, note: Callable[[str], None]) -> Callable[[str], None]:
        """Return a function that keeps a line and passes it on."""

        def forward_note(line: str) -> None:
            self.lines.append(line)
            note(line)

        return forward_note


class SharedReading:
    """Reads the networks and the devices of requests for any number of threads; the first one that needs them reads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._readings: dict[object, _Reading] = {}
        self._inventories: dict[Path, Mapping[str, Device]] = {}

    def inventory(self, path: Path) -> Mapping[str, Device]:
        """Return what `load_inventory` does; raises its errors, which are not kept."""
        with self._lock:
            if path not in self._inventories:
                self._inventories[path] = load_inventory(path)
            return self._inventories[path]

    def ahead(self, requests: Iterable[ProfileRequest], stop: threading.Event) -> None:
        """Read the networks of requests until a stop; what cannot be read is left to the request that needs it."""
        for request in {_key_of(one): one for one in requests if one.space is None}.values():
            if not stop.is_set():
                with contextlib.suppress(HarnessError):
                    self.networks(request, lambda _: None)

    def networks(self, request: ProfileRequest, note: Callable[[str], None]) -> NetworkList:
        """Return what `request.read_networks` does, with its lines; raises its errors, which are not kept."""
        with self._lock:
            reading = self._readings.setdefault(_key_of(request), _Reading())
        with reading.lock:
            if reading.found is None:
                reading.lines.clear()
                reading.found = request.read_networks(reading.forwarding_to(note))
                return reading.found
        for line in reading.lines:
            note(line)
        return reading.found


def _key_of(request: ProfileRequest) -> object:
    """Return what requests that read the same networks have in common."""
    return request.models, tuple(sorted((request.dims or {}).items())), request.batch, request.strict
