"""Workspaces for tests of the command line."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from command_line import Harness
from system_networks import convolutions, save


@pytest.fixture(scope="session")
def small_network(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small valid network of five nodes in three layers."""
    return save(convolutions(), tmp_path_factory.mktemp("networks") / "small.onnx")


@pytest.fixture(scope="session")
def profiled(tmp_path_factory: pytest.TempPathFactory, small_network: Path) -> Harness:
    """A workspace with a campaign and a table of the small network on null01; tests must leave it as it is."""
    harness = Harness.in_folder(tmp_path_factory.mktemp("profiled"))
    harness("profile", "--device", "null01", small_network).assert_ok()
    harness("lut", "build", "--device", "null01").assert_ok()
    return harness


@pytest.fixture
def unchanged(profiled: Harness) -> Iterator[Harness]:
    """The profiled workspace; fails where the test leaves journal or tables other than they were."""
    before = profiled.kept()
    assert before
    yield profiled
    assert profiled.kept() == before, "journal or tables changed"
