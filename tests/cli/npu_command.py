"""`harness npu` in this process, for tests."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

import pytest

from harness.cli.app import main


@dataclass(frozen=True)
class Outcome:
    """The exit code and the output of one command."""

    code: int
    stdout: str
    stderr: str

    @property
    def json(self) -> dict[str, Any]:
        """Return the one JSON object that a successful command prints."""
        assert self.code == 0, self.stderr
        found: dict[str, Any] = json.loads(self.stdout)
        assert found["schema_version"] == 1
        return found


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
        for text in (outcome.stdout, outcome.stderr):
            assert all(character.isprintable() or character == "\n" for character in text), repr(text)
        return outcome

    def misuses(self, *words: object, mentions: tuple[str, ...]) -> None:
        """The command ends with the usage error of the option parser, which mentions all of this."""
        outcome = self(*words)
        assert outcome.code == 2 and outcome.stdout == "", outcome
        for word in ("Usage: harness npu", "Error: ", *mentions):
            assert word in outcome.stderr, f"{word!r} is not in {outcome.stderr}"

    def refuses(self, code: int, *words: object, mentions: tuple[str, ...]) -> None:
        """The command ends with this code, without a result, and its error mentions all of this."""
        outcome = self(*words)
        assert outcome.code == code and outcome.stdout == "", outcome
        assert outcome.stderr.startswith("error: ") and outcome.stderr.count("error: ") == 1, outcome.stderr
        for word in mentions:
            assert word.lower() in outcome.stderr.lower(), f"{word!r} is not in {outcome.stderr}"
