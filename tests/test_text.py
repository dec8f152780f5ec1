"""Text of the host: durations, sizes in bytes, safe names, and the end of long messages."""

import pytest
from hypothesis import given, strategies as st

from harness.text import (
    byte_size,
    counted,
    duration_s,
    four_digits,
    is_safe_name,
    last_part,
    milliseconds,
    printable,
    safe_name,
)


@pytest.mark.parametrize(
    ("text", "seconds"), [("90", 90), ("90s", 90), ("10m", 600), ("2h", 7200), ("7d", 604_800), (" 1.5h ", 5400)]
)
def test_durations(text: str, seconds: float) -> None:
    """A duration is a number with one of the units s, m, h and d, or seconds without a unit."""
    assert duration_s(text) == seconds


@pytest.mark.parametrize(
    "text", ["", "0", "0s", "-1m", "1w", "1 m 2 s", "1e3", "nan", "inf", "10 minutes", "9999999999", "9999999d"]
)
def test_other_text_is_no_duration(text: str) -> None:
    """Text without a unit of time, zero, and durations of years are refused."""
    with pytest.raises(ValueError, match="is not a duration"):
        duration_s(text)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.0, "0"),
        (2.5, "2500.0"),
        (1.2345e-3, "1.234"),
        (7.28e-5, "0.0728"),
        (1.234e-6, "0.00123"),
        (9.999e-9, "0.0000100"),
    ],
)
def test_milliseconds_show_three_digits_of_the_shortest_latency(seconds: float, text: str) -> None:
    """A latency that is not zero never shows as zero, and four decimals show where they suffice."""
    assert milliseconds(seconds) == text
    assert milliseconds(-seconds).lstrip("-") == text


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, "0"),
        (1, "1 B"),
        (1023, "1023 B"),
        (1024, "1 KiB"),
        (1536, "1.5 KiB"),
        (3 << 20, "3 MiB"),
        (5 << 31, "10 GiB"),
    ],
)
def test_byte_sizes(count: int, text: str) -> None:
    """A size has the largest unit that it reaches."""
    assert byte_size(count) == text


@given(st.text(max_size=80))
def test_safe_names_are_safe_in_paths_and_options(text: str) -> None:
    """A safe name has 1 to 64 plain characters and begins neither with a dot nor with a dash."""
    plain = bool(text) and len(text) <= 64 and text.isascii() and all(c.isalnum() or c in "._-" for c in text)
    assert is_safe_name(text) is (plain and text[0] not in ".-")
    if is_safe_name(text):
        assert safe_name(text) == text
    else:
        with pytest.raises(ValueError, match="1 to 64 letters"):
            safe_name(text)


@given(st.text(max_size=200), st.integers(1, 50))
def test_shown_text_is_short_and_printable(text: str, limit: int) -> None:
    """Text for people is one printable line; `printable` keeps the beginning of long text, `last_part` the end."""
    for shown, longest in ((printable(text, limit), limit), (last_part(text, limit), limit + 1)):
        assert shown.isprintable() and len(shown) <= longest
    assert last_part("x" * 9 + "end", 3) == "…end"


@pytest.mark.parametrize(
    ("value", "text"),
    [(0.012344, "0.01234"), (28.66, "28.66"), (999.4, "999.4"), (1000, "1,000"), (5e4, "50,000")],
)
def test_four_digits_are_never_in_powers_of_ten(value: float, text: str) -> None:
    """Numbers have four significant digits, and large ones all digits before the point."""
    assert four_digits(value) == text


def test_a_noun_is_singular_for_one_alone() -> None:
    """A noun takes an s behind every number but one."""
    assert [counted(number, "layer") for number in (0, 1, 1200)] == ["0 layers", "1 layer", "1,200 layers"]
