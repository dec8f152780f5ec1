"""Published times of chips: every figure has its machine and source, and every large difference its cause."""

import pytest
from published_figures.chips import EXPLAINED, ChipFigure, chip_figures

QUICK = ("squeezenet",)


def test_figures_of_at_least_six_systems() -> None:
    """Each figure names a source, and each system is a built-in machine."""
    figures = chip_figures()
    assert len({figure.machine for figure in figures}) >= 6
    assert all(figure.source and figure.described().name == figure.machine for figure in figures)


@pytest.mark.parametrize(
    "figure",
    [each for each in chip_figures() if each.network in QUICK],
    ids=lambda each: f"{each.machine} {each.network}",
)
def test_a_large_difference_has_a_cause(figure: ChipFigure) -> None:
    """A time that differs by more than a tenth names the cause; the others need none."""
    error = figure.error(figure.ours_ms())
    assert bool(figure.cause) == (abs(error) > EXPLAINED), f"{error:+.1%}"


@pytest.mark.long
@pytest.mark.parametrize(
    "figure",
    [each for each in chip_figures() if each.network not in QUICK],
    ids=lambda each: f"{each.machine} {each.network}",
)
def test_a_large_difference_of_large_networks_has_a_cause(figure: ChipFigure) -> None:
    """The same for networks that take seconds to compile."""
    test_a_large_difference_has_a_cause(figure)
