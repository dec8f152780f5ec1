"""The cache of results on this host, and what changes with the code that computes them.

`device_agents.result_cache` describes the folder; host and agents share it.
"""

import contextlib
import os
from collections.abc import Iterator
from importlib.util import find_spec

from device_agents.result_cache import VARIABLE, folder, get, key_of, put
from harness.version import LOADED_NS

__all__ = ["VARIABLE", "code_version", "get", "key_of", "put", "unused"]

_TICK_NS = 20_000_000
"""Systems date a change of a file by the last tick of their clock."""


def code_version(*packages: str) -> str:
    """Return a text that changes with the code of these packages, which are imported from files.

    It is empty if there is no cache, or if a file changed after this process loaded the program. Such a process may run
    the earlier code, or parts of both, and nothing that it computes belongs into the cache.
    """
    if not folder():
        return ""
    files = [found for package in packages for found in _files_of(package)]
    if any(status.st_ctime_ns > LOADED_NS - _TICK_NS for _, status in files):
        return ""
    return key_of(*(f"{path} {status.st_size} {status.st_ctime_ns}" for path, status in files))


@contextlib.contextmanager
def unused() -> Iterator[None]:
    """Neither read nor write the cache inside, to check the files themselves."""
    with contextlib.ExitStack() as stack:
        if VARIABLE in os.environ:
            stack.callback(os.environ.__setitem__, VARIABLE, os.environ[VARIABLE])
        else:
            stack.callback(os.environ.pop, VARIABLE, None)
        os.environ[VARIABLE] = ""
        yield


def _files_of(package: str) -> Iterator[tuple[str, os.stat_result]]:
    """Yield the Python files of a package of this program, the first one of a library: every update replaces it."""
    found = find_spec(package)
    for place in (found.submodule_search_locations or ()) if found else ():
        paths = [f"{place}/__init__.py"]
        if package.startswith(("harness", "device_agents")):
            paths = sorted(f"{folder}/{name}" for folder, _, names in os.walk(place) for name in names)
        for path in paths:
            if path.endswith(".py"):
                with contextlib.suppress(FileNotFoundError):  # editors leave dangling links next to a file
                    yield path, os.stat(path)
