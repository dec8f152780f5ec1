"""Closed forms reproduce the figures that their authors published."""

import pytest
from published_figures.published import Comparison, comparisons


@pytest.mark.parametrize("row", comparisons(), ids=lambda row: f"{row.anchor}: {row.quantity}")
def test_published_figure_is_reproduced(row: Comparison) -> None:
    """Every figure of tests/published_figures is reproduced within its tolerance."""
    assert row.agrees, f"published {row.published}, ours {row.ours} ({row.error_percent:+.3f} %)"
