"""How the command backend finds a latency in what a tool prints."""

import json
import re
from typing import Any

import pytest
from hypothesis import given, strategies as st

from device_agents.backends.command.latency_rule import latency_rule, nanoseconds


def test_patterns_are_of_whole_lines() -> None:
    """Alternatives stay within the anchors, other lines do not count, and lines may end with CR LF."""
    find = latency_rule(r"pattern:^mean ([0-9.]+) ms|median ([0-9.]+) ms$".replace("median (", "median (?:")).find
    assert find("x\nmean 1.5 ms\r\ny") == [1.5]
    for text in ("the mean 1.5 ms", "mean 1.5 ms more", "mean 1.5 ms\nmean 1.5 ms", "", "median 2.5 ms"):
        with pytest.raises(ValueError, match=r"matches|not a number"):
            find(text)


DOCUMENTS = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.sampled_from("abc"), inner, max_size=3),
    max_leaves=12,
)


PATHS = st.lists(st.sampled_from([".a", ".b", "['c']", "[0]", "[1]"]), max_size=3).map("".join)


@given(DOCUMENTS, PATHS, st.booleans())
def test_json_paths_find_numbers_or_say_why(document: Any, path: str, each: bool) -> None:
    """Whatever the document, a path finds what plain indexing finds, if that is a number, or raises ValueError."""
    expected: Any = None
    try:
        expected = eval(re.sub(r"\.([a-c])", r"['\1']", f"document{path}"))  # noqa: S307 - a handful of known paths
        kind = type(expected)
    except (KeyError, TypeError, IndexError):
        kind = None
    rule = latency_rule(f"json:${path}{'[*]' if each else ''}")
    text = json.dumps(document)
    if kind in (int, float) and not each:
        found = rule.find(text)
        assert found == [pytest.approx(float(expected), nan_ok=True)]
    elif kind is list and each and expected and all(type(one) in (int, float) for one in expected):
        assert rule.find(text) == [pytest.approx(float(one), nan_ok=True) for one in expected]
    else:
        with pytest.raises(ValueError, match=r"\$"):
            rule.find(text)


@given(st.floats() | st.floats(1e-12, 1e14), st.sampled_from(["s", "ms", "us", "ns"]))
def test_latencies_are_positive_and_bounded(figure: float, unit: str) -> None:
    """Every figure is a latency from a nanosecond to 10,000 s, or an error."""
    try:
        time_ns = nanoseconds(figure, unit)
    except ValueError:
        seconds = figure * {"s": 1, "ms": 1e-3, "us": 1e-6, "ns": 1e-9}[unit]
        assert not 0.6e-9 <= seconds <= 0.9999e4
    else:
        assert 1 <= time_ns <= 10**13


def test_a_pattern_that_takes_for_ever_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """A pattern that tries all divisions of a long word is refused when its time is over, and the error says so."""
    monkeypatch.setattr("device_agents.backends.command.latency_rule._MATCHING_S", 0.5)
    rule = latency_rule("pattern:^(?:a+)+([0-9]*)$")
    with pytest.raises(ValueError, match="takes more than"):
        rule.find("a" * 60 + "b")
