"""Numbers and names formatted for readers."""

import pytest

from harness.report.page_values import Unit, display, duration, percent, signed_percent, significant, unit_for


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (0.0, "0"),
        (1.0, "1.000"),
        (81.59001, "81.59"),
        (9.99996, "10.00"),
        (0.99996, "1.000"),
        (12345.6, "12,346"),
        (0.0001898048, "0.0001898"),
        (-2.88032, "\N{MINUS SIGN}2.880"),
    ],
)
def test_four_significant_digits(value: float, shown: str) -> None:
    """Numbers have four significant digits, trailing zeros included, and keep all integer digits."""
    assert significant(value) == shown


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [
        (2.5e-7, "0.2500 µs"),
        (9.999999e-4, "1,000 µs"),
        (1e-3, "1.000 ms"),
        (0.0816, "81.60 ms"),
        (3.2, "3.200 s"),
        (0, "0 µs"),
    ],
)
def test_durations_have_the_unit_that_suits_them(seconds: float, shown: str) -> None:
    """A duration is in microseconds, milliseconds or seconds by its size."""
    assert duration(seconds).replace("\N{NARROW NO-BREAK SPACE}", " ") == shown


def test_a_column_has_one_unit() -> None:
    """The median of non-zero values decides the unit, which is at least microseconds unless asked for."""
    assert unit_for([0, 2e-6, 3e-3, 4e-3]).symbol == "ms"
    assert unit_for([]) == Unit("µs", 1e-6)
    assert unit_for([1e-13]).symbol == "µs"
    assert unit_for([3e-12], smallest=0).symbol == "ps"


def test_percentages_have_a_sign_where_they_are_errors() -> None:
    """Errors have a sign, shares do not."""
    assert signed_percent(-0.0312) == "\N{MINUS SIGN}3.1\N{NARROW NO-BREAK SPACE}%"
    assert signed_percent(0.05) == "+5.0\N{NARROW NO-BREAK SPACE}%"
    assert percent(0.831, 0) == "83\N{NARROW NO-BREAK SPACE}%"


def test_clean_text_is_printable_and_bounded() -> None:
    """Control, bidirectional and surrogate characters are replaced by visible ones; long text is cut."""
    assert display("a\nb\x1b[31m\x7f\u202e\ud800") == "a␊b␛[31m␡\ufffd\ufffd"
    assert len(display("x" * 10_000)) == 400
