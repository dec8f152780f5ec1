"""Lists of networks: those that can be used, and those that are refused, each with its file and the reason."""

from __future__ import annotations

import itertools
import os
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import PurePath
from typing import Generic, TypeVar

from harness.errors import (
    CoverageError,
    ErrorRecord,
    HarnessError,
    NetworkError,
    NetworksRefused,
    UsageError,
    advice,
    record_of,
)
from harness.network.keyed_network import KeyedNetwork
from harness.network.model_references import (
    ModelContent,
    ModelReference,
    Models,
    is_builtin,
    load_network,
    model_references,
    shown,
)
from harness.network.network import Network
from harness.network.reading.limits import READING
from harness.parallel import cores, may_fork, results
from harness.text import printable, sentences

_NEXT = "Run the command on fewer files at a time to find the one that crashes it"
_FEWEST_SHARED = 4
"""The fewest networks for which further processes start."""
_NAMED = 3
"""The most files that the summary of refusals names."""


@dataclass(frozen=True, kw_only=True)
class RefusedNetwork(ErrorRecord):
    """A network of a list that cannot be used: its file, and the error as plain data.

    `kind` is the name of the error's class in `harness.errors`: a NetworkError, or CoverageError for one that cannot be
    validated since the table lacks its layers. `what` names the file as well. `error()` returns the error to raise.
    """

    file: str

    @classmethod
    def of(cls, file: str, error: NetworkError | CoverageError) -> RefusedNetwork:
        """Return the refusal that an error is."""
        return cls(**vars(record_of(error)), file=file)

    def __str__(self) -> str:
        """Return file, reason and next step on one line."""
        return printable(sentences(self.what, self.why, advice(self)))


ListedNetwork = Network | KeyedNetwork
"""A network of a list, whole or as keys of layers."""
AnyNetwork = TypeVar("AnyNetwork", bound=ListedNetwork)
Load = Callable[[ModelReference, Callable[[str], None]], AnyNetwork]
"""Reads one network, and passes lines about it to a function."""
Progress = Callable[[int, int], None]
"""Receives how many networks of how many were read."""


@dataclass(frozen=True)
class NetworksRead(Generic[AnyNetwork]):
    """The networks of a list that can be used, the refused ones, and the values of symbolic dimensions."""

    networks: tuple[AnyNetwork, ...]
    refused: tuple[RefusedNetwork, ...] = ()
    dims: Mapping[str, int] = field(default_factory=dict)


NetworkList = NetworksRead[Network]


def read_networks(
    models: Models,
    dims: Mapping[str, int] | None = None,
    *,
    batch: int | None = None,
    strict: bool = False,
    note: Callable[[str], None] = lambda _: None,
) -> NetworkList:
    """Read all networks of a list before any is used, in one process for each core if it is long.

    `batch` sets the leading dimension of all inputs. `note` receives a line for each refused network. Raises the error
    of a single network; NetworksRefused if all are refused, or with `strict` if any is; UsageError for a name
    in `dims` that no network has.
    """

    def load(reference: ModelReference, note: Callable[[str], None]) -> Network:
        return load_network(reference, dims, batch, note)

    references = model_references(models)
    return read_each(references, load, dims, strict=strict, note=note, jobs=reading_jobs(references))


def read_each(
    models: Models,
    load: Load[AnyNetwork],
    dims: Mapping[str, int] | None = None,
    *,
    strict: bool = False,
    note: Callable[[str], None] = lambda _: None,
    jobs: int = 1,
    progress: Progress = lambda _done, _count: None,
) -> NetworksRead[AnyNetwork]:
    """Read all networks of a list by a function, in `jobs` processes; notes and errors are those of `read_networks`."""
    references = model_references(models)
    networks: list[AnyNetwork] = []
    sources: list[ModelReference] = []
    refused: list[RefusedNetwork] = []
    attempts = results(lambda at: _attempt(references[at], load), len(references), jobs, next_step=_NEXT)
    for done, (found, lines) in enumerate(attempts, start=1):
        progress(done, len(references))
        for line in lines:
            note(line)
        if isinstance(found, RefusedNetwork):
            refused.append(found)
        else:
            networks.append(found)
            sources.append(references[done - 1])
            _note_unmeasured(found, note)
    check_refused(refused, len(networks), strict=strict)
    note_refused(refused, note)
    if not refused:  # the dimension may belong to a network that was refused
        _check_dims(networks, dims or {})
    return NetworksRead(_with_distinct_names(networks, sources), tuple(refused), dims or {})


def _with_distinct_names(networks: Sequence[AnyNetwork], sources: Sequence[ModelReference]) -> tuple[AnyNetwork, ...]:
    """Return the networks; different ones of the same name get the folders by which their files differ before it.

    Files that differ by nothing but their suffixes keep these. Networks that come from no file keep their names.
    """
    digests = defaultdict(set)
    for one in networks:
        digests[one.name].add(one.sha256)
    paths = {
        at: PurePath(source)
        for at, (one, source) in enumerate(zip(networks, sources, strict=True))
        if isinstance(source, str) and not is_builtin(source) and len(digests[one.name]) > 1
    }
    files = {at: path.with_suffix("").parts for at, path in paths.items()}
    if len({*files.values()}) < len({*paths.values()}):
        files = {at: path.parts for at, path in paths.items()}
    longest, count = max(map(len, files.values()), default=0), len({*files.values()})
    depth = next((n for n in range(2, longest) if len({parts[-n:] for parts in files.values()}) == count), longest)
    names = {at: printable(str(PurePath(*parts[-depth:]))) for at, parts in files.items()}
    return tuple(replace(one, name=names[at]) if at in names else one for at, one in enumerate(networks))


def reading_jobs(references: Sequence[ModelReference]) -> int:
    """Return how many processes read: one for each core, or as many as may read the largest files at the same time."""
    if len(references) < _FEWEST_SHARED or not may_fork():
        return 1
    largest = sorted((READING.limits(_size(one)).memory_bytes for one in references), reverse=True)[: cores()]
    return max(1, sum(1 for taken_bytes in itertools.accumulate(largest) if taken_bytes <= _room_bytes()))


def _room_bytes() -> int:
    """Return half of the memory of this machine."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2


def _size(reference: ModelReference) -> int:
    if isinstance(reference, ModelContent):
        return len(reference.content)
    try:
        return os.stat(reference).st_size
    except (OSError, ValueError):  # a built-in network, or the reader says what is wrong
        return 0


def _attempt(reference: ModelReference, load: Load[AnyNetwork]) -> tuple[AnyNetwork | RefusedNetwork, list[str]]:
    """Return a network or its refusal, and the lines about it."""
    lines: list[str] = []
    try:
        return load(reference, lines.append), lines
    except NetworkError as error:
        return RefusedNetwork.of(shown(reference), error), lines


def load_networks(
    models: Models, dims: Mapping[str, int] | None = None, note: Callable[[str], None] = lambda _: None
) -> list[Network]:
    """Read networks; raises as `read_networks` does for a strict list."""
    return list(read_networks(models, dims, strict=True, note=note).networks)


def check_refused(refused: Sequence[RefusedNetwork], left: int, *, strict: bool = False) -> None:
    """Raise if all networks are refused, or with `strict` if any is: its own error for a single network.

    Several networks raise NetworksRefused, or the first CoverageError if no network has another error.
    """
    if not refused or (left and not strict):
        return
    if len(refused) == 1 or _are_uncovered(refused):
        raise refused[0].error()
    what = f"{_count(len(refused), left)} refused"
    step = "Correct them, or omit them from the list" if left else "Correct them"
    raise NetworksRefused(what, why="\n".join(map(str, refused)), next_step=step, unset=_unset(refused))


def note_refused(refused: Sequence[RefusedNetwork], note: Callable[[str], None]) -> None:
    """Pass a line for each refusal to `note`."""
    for one in refused:
        note(f"refused: {one}")


def _note_unmeasured(network: ListedNetwork, note: Callable[[str], None]) -> None:
    """Pass a line to `note` if a part of the network is not measured."""
    if not network.unmeasured:
        return
    first, count = network.unmeasured[0], len(network.unmeasured)
    nodes = f"node {first.name!r} ({first.op})" + (f" and {count - 1} after it" if count > 1 else "")
    verb, its = ("are", "their") if count > 1 else ("is", "its")
    reason = f"because {its} sizes depend on the data or {its} results are not numbers"
    note(f"not measured: {network.file or network.name}: {nodes} {verb} left out {reason}")


def refusals_error(refused: Sequence[RefusedNetwork], measured: int) -> HarnessError:
    """Return the error that ends a command whose other networks have their results; all refusals were shown."""
    names = ", ".join(one.file for one in refused[:_NAMED])
    more = f" and {len(refused) - _NAMED} more" if len(refused) > _NAMED else ""
    what = f"{_count(len(refused), measured)} skipped; the others completed"
    if _are_uncovered(refused):
        step = "Profile them and build the table again, or omit them"
        return CoverageError(what, why=f"The table lacks layers of {names}{more}", next_step=step)
    step = "Correct them or omit them; --strict ends the command before anything is measured"
    return NetworksRefused(what, why=f"{names}{more}", next_step=step, unset=_unset(refused))


def _unset(refused: Sequence[RefusedNetwork]) -> Iterable[str]:
    return dict.fromkeys(name for one in refused for name in one.unset)


def _are_uncovered(refused: Sequence[RefusedNetwork]) -> bool:
    return all(one.kind == CoverageError.__name__ for one in refused)


def _count(refused: int, left: int) -> str:
    return f"{refused} of {refused + left} networks {'is' if refused == 1 else 'are'}"


def _check_dims(networks: Sequence[ListedNetwork], dims: Mapping[str, int]) -> None:
    known = {name for network in networks for name in network.symbols}
    unknown = sorted(set(dims) - known)
    if unknown:
        names = ", ".join(network.name for network in networks)
        fixed = f"{names}: all dimensions are fixed, and there is no scalar integer or Boolean input"
        why = f"Dimensions and inputs of {names} that can have a value: {', '.join(sorted(known))}" if known else fixed
        step = "Give values only to these" if known else "Omit it"
        what = f"No network has a dimension or an input named {unknown[0][:80]!r}"
        raise UsageError(what, why=why[:300], next_step=step)
