"""What the keys of cached results depend on: the code that runs."""

import time
from pathlib import Path

import pytest

from harness import cache


@pytest.fixture
def packages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a package of this program and a library, both older than this process."""
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(cache, "LOADED_NS", time.time_ns() + 10**12)
    for name in ("harness_of_test", "library_of_test"):
        (tmp_path / name / "part").mkdir(parents=True)
        (tmp_path / name / "__init__.py").touch()
        (tmp_path / name / "part" / "read.py").touch()
    return tmp_path


def test_the_version_of_code_changes_with_it(packages: Path) -> None:
    """Every file of this program counts, and the first one of a library; links to nowhere and other files do not."""
    own, other = cache.code_version("harness_of_test"), cache.code_version("library_of_test")
    assert own and other and own != other
    (packages / "harness_of_test" / ".#read.py").symlink_to(packages / "nowhere")
    (packages / "harness_of_test" / "notes.txt").touch()
    assert cache.code_version("harness_of_test") == own
    time.sleep(0.02)  # a tick of the clock that dates changes
    for name in ("harness_of_test", "library_of_test"):
        (packages / name / "part" / "read.py").write_text("")
    assert cache.code_version("harness_of_test") != own
    assert cache.code_version("library_of_test") == other
    (packages / "library_of_test" / "__init__.py").unlink()
    (packages / "library_of_test" / "__init__.py").touch()
    assert cache.code_version("library_of_test") != other


def test_code_that_changed_under_a_process_has_no_version(packages: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that was started before its code was updated runs other code than the one on the disk."""
    assert cache.code_version("harness_of_test")
    monkeypatch.setattr(cache, "LOADED_NS", packages.stat().st_ctime_ns)
    assert cache.code_version("harness_of_test") == ""
    assert cache.code_version("harness.network", "onnx")


def test_without_a_cache_no_file_of_the_code_is_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is stored where the cache is off, so there is no version to store it under."""
    assert cache.code_version("harness.network")
    monkeypatch.setenv(cache.VARIABLE, "")
    assert cache.code_version("harness.network") == ""
