"""docs/lut_format.md describes the files as they are."""

import functools
import re
from pathlib import Path

import pandas
import pytest
from hypothesis import given, strategies as st
from made_tables import entry, table

from harness.lut.chain_rows import ChainRow
from harness.lut.table_files import CHAINS, ENTRIES, publish
from harness.network.fusion.fusion_rules import DEFAULT_RULES
from harness.network.layers import cut
from harness.network.model_references import BUILTIN_NAMES, load_network
from harness.predictor.features.key_parser import parse_key

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "lut_format.md").read_text(encoding="utf-8")
_TOKEN = re.compile(
    r'\s*(?:"(?P<literal>[^"]*)"|\?\s*(?P<special>\[.*?\])\s*\?|(?P<name>\w+)|(?P<mark>[=,;|{}()\[\]]))'
)


def blocks(language: str) -> list[str]:
    """Return the blocks of the page in a language."""
    return re.findall(rf"```{language}\n(.*?)```", PAGE, re.DOTALL)


class Grammar:
    """The grammar of the page as one regular expression: no rule of it refers to itself."""

    def __init__(self, text: str) -> None:
        self.rules = dict(re.findall(r"^(\w+)\s*=(.*) ;$", text, re.MULTILINE))

    def pattern(self, rule: str) -> str:
        """Return the expression of a rule."""
        self._tokens = []
        return self._expression(self._tokenise(self.rules[rule]))

    @staticmethod
    def _tokenise(text: str) -> list[dict[str, str | None]]:
        tokens, at = [], 0
        while text[at:].strip():
            found = _TOKEN.match(text, at)
            assert found, text[at:]
            tokens.append(found.groupdict())
            at = found.end()
        return tokens

    def _expression(self, tokens: list[dict[str, str | None]]) -> str:
        """Take the tokens up to a closing bracket."""
        parts = []
        while tokens:
            token = tokens.pop(0)
            if token["literal"] is not None:
                parts.append(re.escape(token["literal"]))
            elif token["special"]:
                parts.append(token["special"])
            elif token["name"]:
                parts.append(f"(?:{Grammar.pattern(self, token['name'])})")
            elif token["mark"] == "|":
                parts.append("|")
            elif token["mark"] in ("{", "[", "("):
                inner = self._expression(tokens)
                parts.append(f"(?:{inner}){dict(zip('{[(', ('*', '?', ''), strict=True))[str(token['mark'])]}")
            elif token["mark"] in ("}", "]", ")"):
                return "".join(parts)
        return "".join(parts)


@functools.cache
def signature_pattern() -> re.Pattern[str]:
    """The compiled rule `signature`."""
    (grammar,) = blocks("ebnf")
    return re.compile(Grammar(grammar).pattern("signature"))


@functools.cache
def signatures() -> tuple[str, ...]:
    """All signatures of the built-in networks, fused by the default rules and not fused at all."""
    networks = [load_network(f"builtin:{name}") for name in BUILTIN_NAMES]
    layers = (layer for network in networks for rules in (DEFAULT_RULES, ()) for layer in cut(network, rules))
    return tuple(sorted({layer.key.text for layer in layers}))


def test_the_grammar_describes_every_signature_of_the_built_in_networks() -> None:
    """Each signature of the fifteen networks is a sentence of the grammar, and the project's parser reads it."""
    assert len(signatures()) > 900
    for text in (*signatures(), *(line for block in blocks("text") for line in block.splitlines() if line[:2] == "k1")):
        assert signature_pattern().fullmatch(text), text
        assert parse_key(text) is not None


@given(st.data())
def test_the_grammar_describes_nothing_that_is_cut_short(data: st.DataObject) -> None:
    """A signature without its end, or without a part between two bars, is no sentence of the grammar."""
    text = data.draw(st.sampled_from(signatures()))
    parts = text.split("|")
    assert not signature_pattern().fullmatch(text[: data.draw(st.integers(0, text.rindex("->")))])
    assert not signature_pattern().fullmatch("|".join(parts[1:]))
    assert not signature_pattern().fullmatch("|".join(parts[:-1]))
    assert not signature_pattern().fullmatch(text.replace("(", "", 1))


@pytest.mark.parametrize("file", [ENTRIES, CHAINS])
def test_the_columns_are_those_of_the_page(file: str, tmp_path: Path) -> None:
    """The tables of columns list the columns of entries.csv and chains.csv in their order."""
    section = PAGE.partition(f"## {file}")[2].partition("\n## ")[0]
    listed = re.findall(r"^\| `(\w+)` \|", section, re.MULTILINE)
    row = ChainRow("0123456789abcdef", 0, *entry("a").place)
    header = (publish(table([entry("a")], chains=(row,)), tmp_path).path / file).read_text().splitlines()[0]
    assert listed == [name.strip('"') for name in header.split(",")]


@pytest.fixture
def tables(tmp_path: Path) -> dict[str, Path]:
    """Two tables of all layers of a built-in network, the second one twice as slow."""
    layers = {one.key.text: one for one in cut(load_network("builtin:mobilenetv2"), DEFAULT_RULES)}
    entries = [entry(text, op=one.op, latency_s=1e-5 * (at + 1)) for at, (text, one) in enumerate(layers.items())]
    slower = [entry(one.signature, op=one.op, latency_s=2 * one.latency_s) for one in entries]
    return {
        "table": publish(table(entries), tmp_path).path,
        "other": publish(table(slower), tmp_path).path,
    }


def test_the_lines_for_pandas_do_what_they_say(tables: dict[str, Path]) -> None:
    """Every statement of the page runs on a table, and its results are those of the entries."""
    known: dict[str, object] = {**tables}
    for block in blocks("python"):
        exec(compile(block, "lut_format.md", "exec"), known)  # noqa: S102 - our own page
    entries, slowest, ratio = (known[name] for name in ("entries", "slowest", "ratio"))
    assert isinstance(entries, pandas.DataFrame) and isinstance(slowest, pandas.DataFrame)
    assert isinstance(ratio, pandas.Series)
    assert list(slowest["latency_s"]) == sorted(entries["latency_s"], reverse=True)[:10]
    assert set(ratio.round(6)) == {2.0} and len(ratio) == len(entries)
    depthwise, kernels, inputs = (known[name] for name in ("depthwise", "kernels", "inputs"))
    assert isinstance(depthwise, pandas.DataFrame) and len(depthwise) > 5
    assert not depthwise["signature"].str.contains("group=1;").any()
    assert isinstance(kernels, pandas.Series) and {"1,1", "3,3"} <= set(kernels.dropna())
    assert isinstance(inputs, pandas.DataFrame) and set(inputs["dtype"]) == {"float32"}
    assert isinstance(known["overhead"], dict) and "input_bytes" in known["overhead"]
    assert isinstance(known["by_operators"], pandas.DataFrame)
    assert isinstance(known["relative_errors"], pandas.Series)
