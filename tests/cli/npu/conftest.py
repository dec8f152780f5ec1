"""Fixtures of the tests of the command line."""

import signal
from collections.abc import Iterator
from pathlib import Path

import npu_inputs
import pytest
from npu_command import Npu


@pytest.fixture
def npu(capfd: pytest.CaptureFixture[str]) -> Iterator[Npu]:
    """The commands; the process handles Ctrl-C afterwards as it did before.

    Commands on files print in a process of their own, so the streams are captured as files.
    """
    handler = signal.getsignal(signal.SIGINT)
    yield Npu(capfd)
    signal.signal(signal.SIGINT, handler)


@pytest.fixture(scope="session")
def network(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two convolutions and a pooling, as a file."""
    return npu_inputs.save(npu_inputs.convolutions(), tmp_path_factory.mktemp("networks") / "small.onnx")
