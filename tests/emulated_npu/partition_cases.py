"""Small and random networks for the tests of the partition."""

from collections.abc import Sequence

from hypothesis import strategies as st

from device_agents.emulated_npu.partition.groups import CoreCapability, CoreGroup, Fabric, parse_groups
from device_agents.emulated_npu.partition.node_graph import NodeGraph, Traversal, Workload, WorkloadNode
from device_agents.emulated_npu.partition.result import CorePartition

# MACs, bytes in, bytes out, static bytes, routed bytes, predecessors. Sums: 1000 MACs, 300 in, 200 static, 320 routed.
SIX_NODES = NodeGraph(
    (
        WorkloadNode("a", Workload(100, 40, 60, 20, 60)),
        WorkloadNode("b", Workload(200, 60, 30, 40, 60), (0,)),
        WorkloadNode("c", Workload(100, 60, 30, 40, 60), (0,)),
        WorkloadNode("d", Workload(300, 60, 50, 80, 60), (1, 2)),
        WorkloadNode("e", Workload(200, 50, 30, 10, 50), (3,)),
        WorkloadNode("f", Workload(100, 30, 10, 10, 30), (4,)),
    )
)


def edges(names: str, *arrows: str) -> NodeGraph:
    """Return nodes of one letter each, without workload, from edges such as "ab" from a to b."""
    return NodeGraph(
        tuple(
            WorkloadNode(name, Workload(), tuple(names.index(arrow[0]) for arrow in arrows if arrow[1] == name))
            for name in names
        )
    )


def chain(*workloads: Workload) -> NodeGraph:
    """Return nodes named 0, 1, 2, … in a chain."""
    return NodeGraph(
        tuple(WorkloadNode(str(index), work, (index - 1,) if index else ()) for index, work in enumerate(workloads))
    )


def fabric(chips: int, cores_per_chip: int, storage_bytes: int = 10**6, macs_per_s: float = 1e9) -> Fabric:
    """Return chips of equal cores."""
    return Fabric(chips, cores_per_chip, CoreCapability(macs_per_s, storage_bytes))


def groups_of_sizes(machine: Fabric, sizes: Sequence[int]) -> tuple[CoreGroup, ...]:
    """Return consecutive groups of these sizes; a group that does not fit the rest of a chip lies on the next."""
    first, texts = 0, []
    for size in sizes:
        if first % machine.cores_per_chip + size > machine.cores_per_chip:
            first += -first % machine.cores_per_chip
        texts.append(f"{first}-{first + size - 1}")
        first += size
    return parse_groups(machine, "/".join(texts))


def names(graph: NodeGraph, nodes: Sequence[int]) -> str:
    """Return the names of nodes in order."""
    return "".join(graph.nodes[node].name for node in nodes)


def parts(graph: NodeGraph, partition: CorePartition) -> list[str]:
    """Return the names of the nodes of each sub-structure."""
    return [names(graph, part.nodes) for part in partition.sub_structures]


def queues(graph: NodeGraph, traversal: Traversal) -> list[str]:
    """Return the queue after each step."""
    return [names(graph, step.queue) for step in traversal.steps]


@st.composite
def graphs(draw: st.DrawFn, most: int = 12, most_macs: int = 9) -> NodeGraph:
    """Draw an acyclic graph with nodes in any order and any workloads."""
    count = draw(st.integers(1, most))
    numbers = draw(st.permutations(range(count)))
    amount = st.integers(0, 9)
    nodes: list[WorkloadNode | None] = [None] * count
    for rank, number in enumerate(numbers):
        earlier = draw(st.sets(st.sampled_from(numbers[:rank]), max_size=4)) if rank else set()
        work = Workload(draw(st.integers(0, most_macs)), draw(amount), draw(amount), draw(amount), draw(amount))
        nodes[number] = WorkloadNode(f"n{number}", work, tuple(earlier))
    return NodeGraph(tuple(node for node in nodes if node))
