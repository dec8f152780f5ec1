"""Mapping files: every mistake is found before a row is read, and names its key."""

import copy
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, strategies as st
from import_files import CONVOLUTION, HEADER, MAPPING, ROW, toml, write_mapping

from harness.errors import ConfigurationError
from harness.table_import.cells import BadRow, Row
from harness.table_import.layer_spec import spec_of
from harness.table_import.mapping import ImportMapping, read_mapping
from harness.table_import.source_file import RowLatency, combined, latency_of

ROW_OF_CELLS = Row(2, dict(zip(HEADER, ROW, strict=True)))
KEYS = st.sampled_from([*ImportMapping.model_fields, "provenence", "where", ""])
VALUES = st.recursive(
    st.one_of(
        st.none(),
        st.booleans(),
        st.integers(-3, 10**12),
        st.floats(allow_nan=False),
        st.text(max_size=10),
        st.sampled_from(["$n", "$", "$ms", "ms", "us", "Conv", "same", "depthwise"]),
    ),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.dictionaries(st.sampled_from(["op", "input", "where", "relative", "n", "column", "tool", "model"]), inner),
    ),
    max_leaves=6,
)


def mapping(**changed: Any) -> ImportMapping:
    """Return the usual mapping with some keys changed."""
    return ImportMapping.model_validate({**MAPPING, **changed})


@given(data=st.data())
def test_any_mapping_is_valid_or_refused_by_its_key(
    data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """A mapping with any key replaced by any value is read, or refused with an error that names the file."""
    content: dict[str, Any] = copy.deepcopy(MAPPING)
    for _ in range(data.draw(st.integers(1, 3))):
        target: Any = data.draw(st.sampled_from([content, content["operator"][0], content["uncertainty"]]))
        keys = KEYS if target is content else st.sampled_from([*CONVOLUTION, "layout", "groups", "std", "n", "level"])
        target[data.draw(keys)] = data.draw(VALUES)
        content = {**MAPPING, **content}
        content["operator"] = content["operator"] if _is_section(content["operator"]) else [dict(CONVOLUTION)]
        if not isinstance(content["uncertainty"], dict):
            content["uncertainty"] = {"relative": 0.1}
    path = tmp_path_factory.mktemp("mapping") / "mapping.toml"
    known = {name: value for name, value in content.items() if value is not None}
    path.write_text("".join(f"{toml(name)} = {_toml(value)}\n" for name, value in known.items()), encoding="utf-8")
    try:
        read = read_mapping(path)
    except ConfigurationError as error:
        assert str(path) in error.what
        return
    for section in read.operator:
        try:
            spec_of(section, ROW_OF_CELLS)
        except (BadRow, KeyError):  # KeyError: a column that this row does not have, which the header check refuses
            continue


def _is_section(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and isinstance(value[0], dict)


def _toml(value: Any) -> str:
    if isinstance(value, dict):
        return "{" + ", ".join(f"{toml(name)} = {_toml(one)}" for name, one in value.items() if one is not None) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(_toml(one) for one in value if one is not None) + "]"
    return toml(value).replace("Infinity", "inf")


@pytest.mark.parametrize(
    ("changed", "key"),
    [
        ({"unit": "sec"}, "unit"),
        ({"unit": None}, "unit is missing"),
        ({"latency": "ms"}, "latency must be the name of a column after a dollar sign"),
        ({"latency": {"column": "ms", "values": {"a": 1}}}, "latency"),
        ({"device": "../x"}, "device"),
        ({"device": ""}, "device"),
        ({"provenance": {}}, "provenance.tool"),
        ({"provenance": {"tool": "a\nb"}}, "provenance.tool"),
        ({"provenance": {"tool": "x" * 501}}, "provenance.tool"),
        ({"uncertainty": {}}, "relative"),
        ({"uncertainty": {"std": "$std"}}, "n, the number of runs"),
        ({"uncertainty": {"low": "$std"}}, "both low and high"),
        ({"uncertainty": {"std": "$std", "stderr": "$std", "n": 3}}, "one of"),
        ({"uncertainty": {"relative": 2.0}}, "uncertainty.relative"),
        ({"overhead": {"c_s": -1.0}}, "overhead.c_s"),
        ({"operator": []}, "[[operator]] or [[layers]]"),
        ({"operator": [{"op": "Relu"}]}, "must have input"),
        ({"operator": [{**CONVOLUTION, "kernl": 3}]}, "Did you mean kernel"),
        ({"operator": [{**CONVOLUTION, "input": [1] * 9}]}, "at most 8"),
        ({"operator": [{**CONVOLUTION, "layout": "CHWN"}]}, "layout"),
        ({"opset": 9}, "opset"),
        ({"network": [{"model": "a.onnx", "latency": 0}]}, "latency"),
    ],
)
def test_a_mistake_is_named_by_its_key(tmp_path: Path, changed: dict[str, Any], key: str) -> None:
    """Missing keys, unknown keys, wrong values and contradictions have an error with the file and the key."""
    with pytest.raises(ConfigurationError) as refused:
        read_mapping(write_mapping(tmp_path, **changed))
    assert key in str(refused.value)
    assert str(tmp_path) in refused.value.what


@given(st.floats(0.001, 1e6), st.sampled_from(["s", "ms", "us", "ns"]))
def test_units_become_seconds(value: float, unit: str) -> None:
    """A latency and its spread in any unit are the same time in seconds."""
    scale = {"s": 1.0, "ms": 1e-3, "us": 1e-6, "ns": 1e-9}[unit]
    row = Row(1, {**ROW_OF_CELLS.cells, "ms": repr(value), "std": repr(value / 10)})
    stated = {"std": "$std", "n": 25, "relative": 0.01}
    try:
        found = latency_of(mapping(unit=unit, uncertainty=stated), row)
    except BadRow:
        assert not 1e-12 <= value * scale <= 1e5
        return
    assert found.latency_s == pytest.approx(value * scale)
    assert found.stderr_s == pytest.approx(value * scale * (0.02**2 + 0.01**2) ** 0.5)
    assert found.runs == 25


@pytest.mark.parametrize(
    ("stated", "relative"),
    [
        ({"relative": 0.03}, 0.03),
        ({"stderr": "$std"}, 0.1),
        ({"std": "$std", "n": 4}, 0.05),
        ({"low": "$low", "high": "$high", "level": 0.8, "n": 1}, 0.2 / (2 * 1.2815516)),
        ({"low": "$low", "high": "$high", "level": 0.95, "n": 16}, 0.2 / (2 * 1.9599640 * 4)),
        ({"std": "$std", "n": "$size"}, 0.1 / 3**0.5),
    ],
)
def test_a_spread_becomes_a_standard_error(stated: dict[str, Any], relative: float) -> None:
    """Deviation and number of runs, percentiles, standard errors and stated shares give the error of the entry."""
    row = Row(1, {**ROW_OF_CELLS.cells, "low": "0.45", "high": "0.55"})
    assert latency_of(mapping(uncertainty=stated), row).stderr_s == pytest.approx(5e-4 * relative)


@pytest.mark.parametrize("cells", [{"std": "-1"}, {"std": "x"}, {"size": "0"}])
def test_a_spread_that_is_none_is_a_bad_row(cells: dict[str, str]) -> None:
    """Negative deviations, texts, and zero runs are refused."""
    with pytest.raises(BadRow):
        latency_of(mapping(uncertainty={"std": "$std", "n": "$size"}), Row(1, {**ROW_OF_CELLS.cells, **cells}))


def test_rows_of_one_layer_are_combined_with_their_spread() -> None:
    """Several rows have the median, all their runs, and an error that is no smaller than their spread says."""
    found = combined([RowLatency(value, 0.01, 5) for value in (1.0, 1.1, 1.6)])
    assert (found.latency_s, found.runs) == (1.1, 15)
    assert found.stderr_s == pytest.approx((0.01**2 + (0.3214550253664318**2) / 3) ** 0.5)
