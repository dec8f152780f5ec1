"""`harness npu` in this process, for tests."""

import importlib
import pkgutil

import onnxruntime  # noqa: F401
import pytest
from command_line import Outcome

import harness.npu
from harness.cli.app import main

# Commands on files run in forks of this process; each fork would load what the commands need.
for _found in pkgutil.walk_packages(harness.npu.__path__, "harness.npu."):
    importlib.import_module(_found.name)


class Npu:
    """Run `harness npu` in this process."""

    def __init__(self, capture: pytest.CaptureFixture[str]) -> None:
        self._capture = capture

    def __call__(self, *words: object) -> Outcome:
        """Run one command; no character that moves a cursor may reach the terminal."""
        self._capture.readouterr()
        with pytest.raises(SystemExit) as end:
            main(["npu", *map(str, words)])
        outcome = Outcome(int(end.value.code or 0), *self._capture.readouterr())
        outcome.assert_plain()
        return outcome

    def misuses(self, *words: object, mentions: tuple[str, ...]) -> None:
        """The command ends with the usage error of the option parser, which mentions all of this."""
        outcome = self(*words)
        assert outcome.code == 2 and outcome.stdout == "", outcome
        for word in ("Usage: harness npu", "Error: ", *mentions):
            assert word in outcome.stderr, f"{word!r} is not in {outcome.stderr}"

    def refuses(self, code: int, *words: object, mentions: tuple[str, ...]) -> None:
        """The command ends with this code, without a result, and its error mentions all of this."""
        outcome = self(*words).assert_refused(code, mentions=mentions)
        before, found, _ = f"\n{outcome.stderr}".partition("\nerror: ")
        assert found, outcome.stderr
        for line in before.split("\n")[1:]:  # a slow machine has lines of progress before the error
            assert f"{words[0]}: " in f"{line}: ", outcome.stderr
