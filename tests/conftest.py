"""Shared fixtures: temporary files in memory, lock files of each test's own, a bench with a null device."""

import ctypes
import gc
import itertools
import math
import os
import re
import shutil
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from command_line import Harness
from dask_threads import end_dask_threads
from hypothesis import HealthCheck, settings
from hypothesis.internal.conjecture import providers
from in_process import in_process
from nullbench import Bench
from page_browser import Browser, headless_browser
from sshd_server import Sshd, running_sshd

gc.set_threshold(10_000, 50, 50)  # searches for cycles among all that the tests import take a while
# All runs of a seed have the same cases, wherever they run: Hypothesis would draw others where a variable says that it
# is tested continuously, and constants of the modules that a process has imported, so by the files that it ran before.
providers._get_local_constants = providers.Constants
settings.register_profile(
    "shared machine",
    derandomize=False,
    print_blob=True,
    deadline=None,  # a busy machine draws slowly
    max_examples=50,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("shared machine")

_IN_MEMORY, _ROOM_BYTES = "/dev/shm", 2 << 30
"""A file system in memory, on which journals need not wait for a disk, and the room that a run of all tests needs."""

_give_back = getattr(ctypes.CDLL(None), "malloc_trim", None)
"""Returns freed memory to the system; None without the GNU C library."""
_ENDING_S = 300.0
"""How long a thread may take to end after its module."""


def _room_bytes() -> int:
    """Return the bytes that files in memory may take: half of the memory that is available, or less."""
    found = re.search(r"MemAvailable: *(\d+) kB", Path("/proc/meminfo").read_text())
    return min(shutil.disk_usage(_IN_MEMORY).free, int(found[1]) * 512 if found else 0)


def pytest_configure() -> None:
    """Put temporary files of tests, and of what they start, into memory where there is room, unless TMPDIR is set."""
    is_usable = os.access(_IN_MEMORY, os.W_OK) and not os.statvfs(_IN_MEMORY).f_flag & os.ST_NOEXEC
    if "TMPDIR" not in os.environ and is_usable and _room_bytes() >= _ROOM_BYTES:
        os.environ["TMPDIR"] = tempfile.tempdir = _IN_MEMORY


FIRST = (
    "system/",
    "cli/",
    "fleet/",
    "nightly/",
    "npu/",
    "device/",
    "emulated_npu/compiler/",
    "emulated_npu/execution/",
    "emulated_npu/many_cores/",
    "network/",
    "predictor/",
    "space/",
    "emulated_npu/timing/",
    "report/",
    "validation/",
)
"""Folders of long files, which must not be the last ones to begin."""


def pytest_collection_finish() -> None:
    """Let no search for cycles pass over what all tests import, nor a fork copy it."""
    gc.freeze()


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put folders of long files first; other files keep the order that they were shuffled into."""
    here = Path(__file__).parent
    items.sort(key=lambda item: not item.path.relative_to(here).as_posix().startswith(FIRST))


@pytest.fixture(scope="session")
def runtime_folders(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """New runtime folders; `mktemp` would list those of all tests before for each."""
    root = tmp_path_factory.mktemp("leases")
    return (root / str(number) for number in itertools.count())


@pytest.fixture(scope="session", autouse=True)
def cache_folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """A cache folder of this run of the tests, which its processes share."""
    base = tmp_path_factory.getbasetemp()
    folder = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "caches"
    folder.mkdir(exist_ok=True)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(folder))
        patch.delenv("HARNESS_CACHE_DIR", raising=False)
        yield


@pytest.fixture(scope="module", autouse=True)
def module_leaves_nothing(request: pytest.FixtureRequest) -> Iterator[None]:
    """A module leaves no thread, beside which all later tests would read networks in new interpreters, and no cache.

    A fork takes longer the more memory the process has.
    """
    before = set(threading.enumerate())
    yield
    for value in vars(request.module).values():
        if getattr(value, "__module__", "") == request.module.__name__ and hasattr(value, "cache_clear"):
            value.cache_clear()
    if _give_back is not None:
        _give_back(0)
    end_dask_threads()
    left = [thread for thread in threading.enumerate() if thread not in before]
    for thread in left:
        thread.join(_ENDING_S)
    assert [thread.name for thread in left if thread.is_alive()] == []


@pytest.fixture(autouse=True)
def runtime_folder(runtime_folders: Iterator[Path], monkeypatch: pytest.MonkeyPatch) -> Path:
    """A runtime folder of this test's own."""
    folder = next(runtime_folders)
    folder.mkdir(mode=0o700)
    monkeypatch.setenv("HARNESS_RUNTIME_FOLDER", str(folder))
    return folder


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    """A workspace with a null device and a small network."""
    return Bench(tmp_path / "workspace")


@pytest.fixture
def devices_in_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let devices be part of this process: for tests of what comes of their latencies, not of agents and leases."""
    for module in ("harness.fleet.connections", "harness.measure.busy_device"):
        monkeypatch.setattr(f"{module}.open_session", in_process)


@pytest.fixture
def any_speed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the processor change its speed, as other work makes it do: no campaign is refused for that."""
    monkeypatch.setattr("harness.measure.noise.campaign_noise.MOST_DRIFT", math.inf)
    monkeypatch.setattr("harness.fleet.health.TOLERANCE", {"device": 0.05, "cpu": 1e6, "wall": 1e6})


@pytest.fixture
def harness(tmp_path: Path) -> Harness:
    """The command line in an empty workspace."""
    return Harness.in_folder(tmp_path / "harness")


@pytest.fixture
def sshd(tmp_path: Path, runtime_folder: Path) -> Iterator[Sshd]:
    """An sshd that lets the key `identity` start the agent and nothing else."""
    with running_sshd(tmp_path / "sshd", runtime_folder) as server:
        yield server


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    """Return a headless Chromium; skip the test if there is none."""
    yield from headless_browser()
