"""The engine dask where no scheduler answers, or where its packages are not installed."""

import gc
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from dask_threads import end_dask_threads
from sshd_server import free_port

from harness.errors import ConfigurationError, EngineError
from harness.fleet.cluster.access import TlsFiles
from harness.fleet.cluster.dask_engine import DaskEngine
from harness.measure.request import ProfileRequest
from harness.workspace import Workspace


@pytest.fixture(autouse=True)
def no_threads() -> Iterator[None]:
    """This process forks where it reads networks."""
    yield
    end_dask_threads()


def _run(engine: DaskEngine) -> None:
    list(engine.run([ProfileRequest("left", name="j")], threading.Event()))


def test_without_a_scheduler_the_engine_raises(tmp_path: Path) -> None:
    """A closed port is an EngineError in the time allowed; TLS without its files is a ConfigurationError."""
    nowhere = f"127.0.0.1:{free_port()}"
    with pytest.raises(EngineError, match="No scheduler answers"):
        _run(DaskEngine(f"tcp://{nowhere}", Workspace(tmp_path), connect_s=1.0))
    for tls in (None, TlsFiles(*(tmp_path / name for name in ("ca.pem", "cert.pem", "key.pem")))):
        with pytest.raises(ConfigurationError, match="TLS"):
            _run(DaskEngine(f"tls://{nowhere}", Workspace(tmp_path), tls=tls))
    gc.collect()  # what the client left open would be reported here


def test_without_the_extra_the_engine_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the extra, the engine raises a ConfigurationError with the command that installs it."""
    monkeypatch.setitem(sys.modules, "distributed", None)
    with pytest.raises(ConfigurationError) as caught:
        _run(DaskEngine("tcp://127.0.0.1:1", Workspace(tmp_path)))
    assert "pip install 'harness[cluster]'" in caught.value.next_step
