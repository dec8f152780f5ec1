"""Tables of layers: their order, what they do not show, and layers of which nothing is known."""

import pytest

from harness.cli.terminal.layer_table import LayerView, ShownLayer, show_layers

ROWS = [
    ShownLayer("short", "Relu", 1e-6, 1e-8, None, "k1", "map", 0.1, "measured"),
    ShownLayer("long", "Conv", 9e-6, 1e-8, None, "k2", "map", 0.9, "measured"),
    ShownLayer("new", "GRU", None, None, None, "k3", "map", None, "unknown"),
]


@pytest.mark.parametrize(
    ("top", "last"), [(1, "and 2 more layers, 10.0 µs together"), (2, "and 1 more layer, 1.00 µs")]
)
def test_unknown_layers_come_first(top: int, last: str, capsys: pytest.CaptureFixture[str]) -> None:
    """A table of some layers begins with those that are not in the table, then come the longest."""
    show_layers(ROWS, LayerView(top=top), sort="order")
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines[1 : 1 + top]] == ["new", "long"][:top]
    assert lines[-1].startswith(last)


def test_layers_that_are_not_shown_say_how_many_are_unknown(capsys: pytest.CaptureFixture[str]) -> None:
    """No sum stands for layers without a latency."""
    show_layers(ROWS, LayerView(sort="order", top=1), sort="order")
    assert capsys.readouterr().out.endswith("and 2 more layers, 9.00 µs together, 1 not in the table\n")
    show_layers(ROWS, LayerView(sort="order", top=2), sort="order")
    assert capsys.readouterr().out.endswith("and 1 more layer, 1 not in the table\n")
