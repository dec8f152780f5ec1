"""Options of backends: numbers that would make a runtime useless are refused with their bounds."""

import pytest

from device_agents.backends import Refused, option_reader
from device_agents.backends.option_reader import MOST_THREADS, MOST_THREADS_PER_CORE, OptionReader
from device_agents.fingerprint import available_cores

CORES = available_cores()


@pytest.mark.parametrize("threads", [0, -1, MOST_THREADS + 1, 1_000_000, 2**63, True, 2.0, "2"])
def test_numbers_that_no_device_takes_are_refused(threads: object) -> None:
    """A number of threads outside 1 to 1,024, or of another type, is refused with these bounds."""
    with pytest.raises(Refused, match="threads of the onnxruntime backend must be a whole number from 1 to 1024"):
        OptionReader("onnxruntime", {"threads": threads}, {"threads"}).threads()


def test_threads_are_limited_by_the_cores_of_the_device(monkeypatch: pytest.MonkeyPatch) -> None:
    """A device takes four threads for each core that it may use, and refuses more with the greatest number."""
    most = MOST_THREADS_PER_CORE * CORES
    assert OptionReader("openvino", {"threads": most}, {"threads"}).threads() == most
    monkeypatch.setattr(option_reader, "available_cores", lambda: 6)
    assert OptionReader("openvino", {"threads": 24}, {"threads"}).threads() == 24
    with pytest.raises(Refused, match="must be at most 24, 4 for each core of this device"):
        OptionReader("openvino", {"threads": 25}, {"threads"}).threads()
