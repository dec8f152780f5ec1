"""Figures of pages and their JSON as Bokeh models, for tests."""

from __future__ import annotations

import base64
import json
import re
import zlib
from pathlib import Path
from typing import Any

from bokeh.document import Document
from bokeh.models import Line, Plot, Scatter, Text


def figure_text(page: str, name: str) -> str:
    """Return the JSON of a figure of a page."""
    found = re.search(f'<script type="text/plain" id="{name}-data">(.*?)</script>', page)
    assert found is not None
    return zlib.decompress(base64.b64decode(found[1])).decode()


class Figure:
    """The one figure of a JSON text or of a page."""

    def __init__(self, text: str) -> None:
        self.plot: Plot = Document.from_json(json.loads(text)["doc"]).roots[0]

    @classmethod
    def of_page(cls, path: Path) -> Figure:
        """Return the figure that a page embeds."""
        return cls(figure_text(path.read_text(), "figure"))

    def columns(self, glyph: type, **looks: Any) -> list[dict[str, list[Any]]]:
        """Return the data of all renderers with this glyph and these properties."""
        return [
            {name: list(values) for name, values in each.data_source.data.items()}
            for each in self.plot.renderers
            if isinstance(each.glyph, glyph)
            and all(_plain(getattr(each.glyph, name)) == value for name, value in looks.items())
        ]

    @property
    def lines(self) -> list[dict[str, list[Any]]]:
        """The series, in order."""
        return self.columns(Line)

    @property
    def rings(self) -> list[dict[str, list[Any]]]:
        """The marked points."""
        return self.columns(Scatter, fill_color=None)

    @property
    def labels(self) -> list[str]:
        """The texts beside marked points."""
        return [text for each in self.columns(Text) for text in each["label"]]

    @property
    def legend(self) -> list[str]:
        """The names in the legend, in order."""
        return [item.label.value for legend in self.plot.legend for item in legend.items]

    @property
    def axis_labels(self) -> list[str]:
        """The labels of the x and the y axis."""
        return [axis.axis_label for axis in (*self.plot.xaxis, *self.plot.yaxis)]

    @property
    def x_ticks(self) -> list[str]:
        """The texts under the x axis."""
        return list(self.plot.xaxis[0].major_label_overrides.values())


def _plain(value: Any) -> Any:
    """Return a property of a glyph without Bokeh's wrapper."""
    return getattr(value, "value", value)
