"""What a device reports about the graph that it runs, as a value and as JSON that is checked before use."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Annotated, TypeVar

from pydantic import Field, ValidationError

from harness.errors import ProtocolError
from harness.network.assemble import EmittedNames
from harness.network.network import Node
from harness.strict_model import StrictModel

NodeName = Annotated[str, Field(min_length=1, max_length=1000)]


@dataclass(frozen=True)
class RuntimeGraph:
    """A network as a runtime executes it. Nodes are given by their indices in the network.

    `groups` are the nodes executed as one; they cover every node of the network. `blocked` are the tensors kept in a
    layout of the runtime's own. `chains` are the nodes whose layers exchange their data on chip, empty if the device
    reports none. `views` are nodes that take no time. `unsigned_pairs` is whether the runtime turned `int8` between
    QuantizeLinear and DequantizeLinear into `uint8`. `merges_maps` is whether it executes an element-wise operator
    together with any other in front of it, or with a convolution, even after an activation.
    """

    groups: tuple[frozenset[int], ...]
    blocked: frozenset[str]
    chains: tuple[frozenset[int], ...] = ()
    views: frozenset[int] = frozenset()
    unsigned_pairs: bool = False
    merges_maps: bool = False

    def is_view(self, nodes: Iterable[Node]) -> bool:
        """Return whether nodes take no time."""
        return all(node.index in self.views for node in nodes)


class ReportedLayer(StrictModel):
    """A layer of the runtime and the nodes of the model that it executes."""

    name: Annotated[str, Field(max_length=1000)]
    nodes: tuple[NodeName, ...]


Report = TypeVar("Report", bound=StrictModel)


def parse_report(form: type[Report], content: bytes) -> Report:
    """Return the report in `content`; raises ProtocolError if it is malformed."""
    try:
        return form.model_validate_json(content)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        field = ".".join(str(part)[:40] for part in first["loc"])
        raise unreadable(f"{field}: {first['msg'][:200]}") from None


def node_indices(names: EmittedNames, nodes: Iterable[str]) -> frozenset[int]:
    """Return the indices of reported nodes; raises ProtocolError for a node that was not sent."""
    try:
        return frozenset(names.nodes[name] for name in nodes)
    except KeyError as error:
        raise unreadable(f"It names a node {error.args[0][:40]!r} that was not sent") from None


def unreadable(why: str = "") -> ProtocolError:
    """Return the error for a report that contradicts itself or the model that was sent."""
    return ProtocolError("The graph that the device reports cannot be read", why=why, next_step="Update the agent")
