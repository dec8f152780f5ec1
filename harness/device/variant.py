"""A campaign's own batch and threads, and the facts that keep its samples apart from other campaigns."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from harness.arguments import check_fields
from harness.errors import UsageError

if TYPE_CHECKING:
    from harness.device.inventory import Device

_NAMES = ("batch", "threads")
_NUMBER = re.compile("[1-9][0-9]{0,4}")
HOST_FACTS = frozenset(_NAMES)
"""Facts of fingerprints that the host adds; a device that reports one would pass for another variant."""


_THREADS = re.compile(r"\bthreads=(\d{1,4})\b")


def threads_of(fingerprint: Mapping[str, str]) -> int:
    """Return the number of threads that a device's runtime reports, 0 if it reports none."""
    found = _THREADS.search(fingerprint.get("settings", ""))
    return int(found[1]) if found else 0


@dataclass(frozen=True)
class Variant:
    """A campaign's own batch and number of threads; None leaves the networks and the inventory as they are."""

    batch: int | None = None
    threads: int | None = None

    def __post_init__(self) -> None:
        check_fields(self)

    @classmethod
    def of(cls, fingerprint: Mapping[str, str]) -> Variant:
        """Return the variant that a fingerprint has; a value that no option takes is none."""
        found = {name: fingerprint.get(name, "") for name in _NAMES}
        return cls(**{name: int(value) for name, value in found.items() if _NUMBER.fullmatch(value)})

    @property
    def facts(self) -> dict[str, str]:
        """The facts that fingerprints of its campaigns and tables contain in addition to those of the device."""
        return {name: str(value) for name in _NAMES if (value := getattr(self, name)) is not None}

    def is_of(self, fingerprint: Mapping[str, str]) -> bool:
        """Return whether a campaign or a table with this fingerprint has the same batch and threads."""
        return {name: fingerprint[name] for name in _NAMES if name in fingerprint} == self.facts

    def options(self) -> str:
        """Return the options of the command line that ask for it, with a space before each."""
        return "".join(f" --{name} {value}" for name, value in self.facts.items())

    def device(self, device: Device) -> Device:
        """Return the device with its number of threads; raises UsageError if its backend has no such option."""
        if self.threads is None:
            return device
        from device_agents.backends import BACKENDS  # estimates need no backend

        if not BACKENDS[device.backend].threads:
            known = ", ".join(name for name, one in BACKENDS.items() if one.threads)
            why = f"Its backend {device.backend!r} has no option threads; {known} have it"
            raise UsageError(f"--threads does not apply to {device.name}", why=why, next_step="Omit --threads")
        return device.model_copy(update={"options": {**device.options, "threads": self.threads}})


NO_VARIANT = Variant()
