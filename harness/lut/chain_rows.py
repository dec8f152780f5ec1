"""The chains of the networks of a table: one row for each layer, in order, as `chains.csv` holds them."""

from __future__ import annotations

import csv
import itertools
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import astuple, dataclass, fields
from typing import TYPE_CHECKING, Annotated

from pydantic import Field

from harness.files import csv_text
from harness.lut.csv_rows import checked_rows

if TYPE_CHECKING:  # the plan of probes takes a while to load
    from harness.probe.chain_plan import ChainProbes

MAX_ROWS = 100_000
VIEW = -1
"""The number of the chain for a layer that takes no time on the device, and is in none."""
_Bytes = Annotated[int, Field(ge=0, lt=1 << 62)]


@dataclass(frozen=True)
class ChainRow:
    """One layer of a network of the table, and the chain that it runs in.

    `network` is the beginning of the hash of the network's file, `chain` the number of the chain within the network, or
    VIEW. `key` and `context` name the layer's entry. `read_bytes` and `written_bytes` are what it reads from other
    chains and writes for them; `result_bytes` and `weight_bytes` are the sizes of all its results and constants.
    `follows` is whether it reads a result of the layer before it.
    """

    network: Annotated[str, Field(pattern=r"^[0-9a-f]{16}$")]
    chain: Annotated[int, Field(ge=VIEW, lt=MAX_ROWS)]
    key: Annotated[str, Field(pattern=r"^[0-9a-f]{16}$")]
    context: Annotated[str, Field(max_length=10_000)]
    read_bytes: _Bytes = 0
    written_bytes: _Bytes = 0
    result_bytes: _Bytes = 0
    weight_bytes: _Bytes = 0
    follows: bool = False

    @property
    def place(self) -> tuple[str, str]:
        """Key digest and context of the layer's entry."""
        return self.key, self.context


_COLUMNS = tuple(field.name for field in fields(ChainRow))
_NUMBERS = ("chain", "read_bytes", "written_bytes", "result_bytes", "weight_bytes")


def rows_of(campaigns: Iterable[Sequence[ChainProbes]], places: Collection[tuple[str, str]]) -> tuple[ChainRow, ...]:
    """Return the rows of the chains of campaigns, oldest first: for each network those of its newest campaign.

    Networks with a layer that is not in `places`, the entries of a table, are left out, and so are windows of
    neighbours, which are not chains.
    """
    found: dict[str, list[ChainRow]] = {}
    for chains in campaigns:
        for network, group in itertools.groupby(chains, key=lambda chain: chain.network):
            held = list(group)
            if all(chain.ordered for chain in held):
                found[network] = [row for number, chain in enumerate(held) for row in _rows(number, chain)]
    known = frozenset(places)
    return tuple(row for rows in found.values() if all(row.place in known for row in rows) for row in rows)


def _rows(number: int, chain: ChainProbes) -> Iterable[ChainRow]:
    yield from (ChainRow(chain.network, VIEW, *place) for place in chain.views)
    for place, layer, weight_bytes in zip(chain.places, chain.ordered, chain.weight_bytes, strict=True):
        sizes = (layer.read_bytes, layer.written_bytes, layer.result_bytes, weight_bytes)
        yield ChainRow(chain.network, number, *place, *sizes, layer.follows)


def write_rows(rows: Sequence[ChainRow]) -> bytes:
    """Return the file that holds these rows; empty without any."""
    cells = [[int(cell) if isinstance(cell, bool) else cell for cell in astuple(row)] for row in rows]
    return csv_text(_COLUMNS, cells, quoting=csv.QUOTE_NONNUMERIC).encode() if rows else b""


def read_rows(content: bytes, is_entry: Callable[[tuple[str, str]], bool]) -> tuple[ChainRow, ...]:
    """Return the rows of a file; raises ValueError, which says what is wrong with it.

    Every row must name an entry of the table, as `is_entry` decides.
    """
    found = []
    for number, row in checked_rows(content, ChainRow, _COLUMNS, _NUMBERS, MAX_ROWS):
        if not is_entry(row.place):
            raise ValueError(f"line {number}: it names a layer that is not in the table")
        found.append(row)
    return tuple(found)
