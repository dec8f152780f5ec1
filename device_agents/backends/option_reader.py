"""Read the options of a backend, with the same errors in all backends."""

from __future__ import annotations

from typing import Any, Collection, Dict, Mapping

from device_agents.backends import Refused
from device_agents.fingerprint import available_cores

MOST_THREADS = 1024
MOST_THREADS_PER_CORE = 4
"""A runtime starts each of its threads with every session: far more threads than cores take minutes for each probe."""
MOST_SEED = (1 << 63) - 1


class OptionReader:
    """Options of one backend; raises Refused for unknown names and for values that are wrong."""

    def __init__(self, backend: str, options: Mapping[str, Any], known: Collection[str]) -> None:
        self._backend, self._options = backend, options
        unknown = sorted(set(options) - set(known))
        if unknown:
            known_names = ", ".join(sorted(known))
            raise Refused(f"the {backend} backend has no option {unknown[0]!r}; it has {known_names}")

    def whole(self, name: str, default: int, least: int, most: int) -> int:
        """Return a whole number from `least` to `most`."""
        value = self._options.get(name, default)
        if type(value) is not int or not least <= value <= most:
            raise self.wrong(name, f"must be a whole number from {least} to {most}")
        return value

    def number(self, name: str, default: float, most: float) -> float:
        """Return a number from 0 to `most`."""
        value = self._options.get(name, default)
        if type(value) not in (int, float) or not 0 <= value <= most:
            raise self.wrong(name, f"must be a number from 0 to {most:g}")
        return float(value)

    def one_of(self, name: str, choices: Collection[str], default: str = "") -> str:
        """Return one of the choices."""
        value = self._options.get(name, default)
        if not isinstance(value, str) or value not in choices:
            raise self.wrong(name, f"must be one of {', '.join(choice or repr(choice) for choice in choices)}")
        return value

    def flag(self, name: str, default: bool) -> bool:
        """Return true or false."""
        value = self._options.get(name, default)
        if type(value) is not bool:
            raise self.wrong(name, "must be true or false")
        return value

    def text(self, name: str, default: str) -> str:
        """Return a text that is not empty."""
        value = self._options.get(name, default)
        if not isinstance(value, str) or not value:
            raise self.wrong(name, "must be text")
        return value

    def table(self, name: str) -> Dict[str, Any]:
        """Return a table of texts, numbers and truth values; an empty one by default."""
        value = self._options.get(name, {})
        if not isinstance(value, dict) or not all(isinstance(one, (str, int, float)) for one in value.values()):
            raise self.wrong(name, "must be a table of texts and numbers")
        return dict(value)

    def threads(self) -> int:
        """Return the number of threads, 1 by default; at most `MOST_THREADS_PER_CORE` for each core of this device."""
        threads = self.whole("threads", 1, 1, MOST_THREADS)
        cores = available_cores()
        if threads > MOST_THREADS_PER_CORE * cores:
            most = f"at most {MOST_THREADS_PER_CORE * cores}, {MOST_THREADS_PER_CORE} for each core of this device"
            raise self.wrong("threads", f"must be {most}")
        return threads

    def wrong(self, name: str, why: str) -> Refused:
        """Return the error for a wrong option."""
        return Refused(f"the option {name} of the {self._backend} backend {why}")
