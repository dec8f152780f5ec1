"""The reader of TOML files: each error names the file, the key and the next step, in TOML's words."""

import tracemalloc
from pathlib import Path
from typing import Annotated, Literal

import pytest
from hypothesis import given, strategies as st
from pydantic import Field

from harness.errors import ConfigurationError
from harness.settings import MAX_SETTINGS_BYTES, check_settings, read_toml
from harness.strict_model import StrictModel


class Engine(StrictModel):
    """A table that a key may hold in place of a word."""

    address: str
    port: int = 1


class Part(StrictModel):
    """A table of an array."""

    name: str
    sizes: Annotated[tuple[int, ...], Field(strict=False)] = ()


class Example(StrictModel):
    """A settings file."""

    engine: Literal["local"] | Engine = "local"
    part: Annotated[tuple[Part, ...], Field(strict=False)] = ()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"a = [", "not valid TOML. .*at end of document"),
        (b"ok = 1\nb = \n", "not valid TOML. .*line 2"),
        (b"a = 1\xff", "not valid TOML. byte 6 is not UTF-8 text. Save it as UTF-8"),
        (b"a = " + b"[" * 50_000, "not valid TOML"),
        (b"a = " + b"9" * 5_000, "not valid TOML"),
        (b"\0\0\0", "not valid TOML"),
        (b"#" * (MAX_SETTINGS_BYTES + 1), "cannot be read. larger than 1,048,576 bytes"),
    ],
)
def test_unreadable_files_say_why(tmp_path: Path, content: bytes, message: str) -> None:
    """Text that is not TOML, bytes that are not UTF-8, and files over the limit are errors with their reason."""
    path = tmp_path / "s.toml"
    path.write_bytes(content)
    with pytest.raises(ConfigurationError, match=message) as raised:
        read_toml(path)
    assert str(path) in str(raised.value) and raised.value.next_step and raised.value.fault == "user"


PARTS = ["a"] * 5_000
LONG_KEYS = {
    "dotted": ".".join(PARTS) + " = 1",
    "table": "[" + ".".join(PARTS) + "]",
    "quoted": ".".join(['"a.\\""', "'b'"] * 2_500) + " = 1",
    "spaced, in an inline table": "x = {" + " \t. ".join(PARTS) + " = 1}",
    "behind a string of four quotes": 'x = ["""a"""", {' + ".".join(PARTS) + " = 1}]",
    "behind a literal of four quotes": "x = ['''a'''', {" + ".".join(PARTS) + " = 1}]",
    "behind a quote in a comment": "# it's\n" + ".".join(PARTS) + " = 1",
}


@pytest.mark.parametrize("case", LONG_KEYS)
def test_keys_of_very_many_parts_are_refused_before_they_are_parsed(tmp_path: Path, case: str) -> None:
    """A key of thousands of parts is refused with its line, and takes little memory."""
    path = tmp_path / "s.toml"
    path.write_text("\n# first\n" + LONG_KEYS[case], encoding="utf-8")
    line = 4 if "comment" in case else 3
    tracemalloc.start()
    try:
        with pytest.raises(ConfigurationError, match=f"key in line {line} has more than 16 parts") as raised:
            read_toml(path)
        assert tracemalloc.get_traced_memory()[1] < 2 << 20
    finally:
        tracemalloc.stop()
    assert raised.value.next_step and raised.value.fault == "user"


def test_dots_in_values_and_comments_are_not_counted(tmp_path: Path) -> None:
    """Strings of any kind and comments may hold any number of dots, and keys sixteen parts."""
    dots = "a." * 100
    lines = [f'x = "{dots}\\"{dots}"', f"y = '{dots}'", f'z = """\n{dots}"{dots}"""', f"# {dots}"]
    lines += [f"w = '''{dots}''''", "v" + ".v" * 15 + " = 1.5"]
    path = tmp_path / "s.toml"
    path.write_text("\n".join(lines), encoding="utf-8")
    assert set(read_toml(path)) == {"x", "y", "z", "w", "v"}


def test_missing_files_and_folders_are_errors(tmp_path: Path) -> None:
    """A path without a file, and a folder, are errors with the system's reason."""
    with pytest.raises(ConfigurationError, match="No such file"):
        read_toml(tmp_path / "absent.toml")
    with pytest.raises(ConfigurationError, match="cannot be read"):
        read_toml(tmp_path)


def test_byte_order_mark_is_ignored(tmp_path: Path) -> None:
    """A file that begins with a byte order mark, as editors on Windows write it, is read."""
    path = tmp_path / "s.toml"
    path.write_bytes(b"\xef\xbb\xbfa = 1\n")
    assert read_toml(path) == {"a": 1}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({"engin": "local"}, r"engin is unknown\. Did you mean engine\?"),
        ({"zzz": 1}, r"zzz is unknown\. Known keys: engine, part"),
        ({"engine": {"adress": "a"}}, "engine.adress is unknown|engine.address is missing"),
        ({"engine": {"address": 3}}, "engine.address is wrong"),
        ({"engine": {"address": "a", "port": "1"}}, "engine.port is wrong"),
        ({"part": [{"name": "a"}, {"sizes": [1]}]}, "part number 2: name is missing"),
        ({"part": [{"name": "a", "sizes": [1, "x"]}]}, "part 'a': sizes is wrong"),
        ({"part": [{"name": "a", "sizes": 3}]}, "sizes is wrong: .*should be a valid array|an array"),
        ({"part": 3}, "part is wrong"),
    ],
)
def test_wrong_values_name_their_key(content: dict[str, object], message: str) -> None:
    """The error shows the key as the file has it, and of a union the type that was meant, without names of types."""
    with pytest.raises(ConfigurationError, match=message) as raised:
        check_settings(
            Example.model_validate, content, Path("s.toml"), known=lambda keys: () if keys else ("engine", "part")
        )
    text = str(raised.value)
    assert text.startswith("s.toml: ") and raised.value.next_step
    assert not any(word in text for word in ("Engine", "tuple", "literal["))


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(max_size=5),
        lambda inner: (
            st.lists(inner)
            | st.dictionaries(
                st.text(max_size=6) | st.sampled_from(["engine", "part", "name", "sizes", "address"]), inner
            )
        ),
        max_leaves=12,
    )
)
def test_any_content_is_accepted_or_refused_with_a_key(content: object) -> None:
    """Content of any structure is accepted or refused with a ConfigurationError of one printable line."""
    try:
        check_settings(
            Example.model_validate, content if isinstance(content, dict) else {"part": content}, Path("s.toml")
        )
    except ConfigurationError as error:
        assert error.what.startswith("s.toml: ") and len(error.what.splitlines()) == 1
