"""Rules for chains reproduce the networks that they were counted from, and follow sizes where layers are unknown."""

from collections.abc import Sequence

from hypothesis import given, strategies as st

from harness.network.chain_rules import ChainRules, OrderedLayer

KILOBYTE = 1024
BUFFER = 64 * KILOBYTE


def layer(key: str, result_bytes: int = 0, op: str = "Conv", follows: bool = True) -> OrderedLayer:
    """Return a layer without weights."""
    return OrderedLayer(key, op, result_bytes, 0, follows)


def in_chains(layers: Sequence[OrderedLayer], starts: Sequence[bool]) -> list[list[OrderedLayer]]:
    """Return the layers in chains that begin where `starts` says, and at the first layer."""
    chains: list[list[OrderedLayer]] = []
    for at, one in enumerate(layers):
        if at == 0 or starts[at]:
            chains.append([])
        chains[-1].append(one)
    return chains


def places(chains: Sequence[Sequence[OrderedLayer]]) -> list[tuple[int, ...]]:
    """Return chains as places of layers in order."""
    numbers = iter(range(sum(map(len, chains))))
    return [tuple(next(numbers) for _ in chain) for chain in chains]


@given(st.lists(st.lists(st.booleans(), min_size=1, max_size=12), min_size=1, max_size=3))
def test_networks_are_cut_as_they_were_seen(networks: list[list[bool]]) -> None:
    """Networks without a layer in common are cut into the chains that the device reported."""
    seen = [
        in_chains([layer(f"{number} {at}") for at in range(len(starts))], starts)
        for number, starts in enumerate(networks)
    ]
    rules = ChainRules(seen)
    for chains in seen:
        assert rules.chains([one for chain in chains for one in chain]) == places(chains)


@given(st.lists(st.sampled_from("abcd"), min_size=1, max_size=20), st.lists(st.booleans(), min_size=20, max_size=20))
def test_each_layer_is_in_one_chain(keys: list[str], starts: list[bool]) -> None:
    """The chains of any network are its layers in order, each once."""
    rules = ChainRules([in_chains([layer(key) for key in "abcdabdcabca"], starts)])
    found = rules.chains([layer(key) for key in keys])
    assert [place for chain in found for place in chain] == list(range(len(keys)))
    assert all(found)


def test_the_longest_pattern_decides() -> None:
    """Two layers that are usually chained are apart between the neighbours that keep them apart."""
    usual = [[layer("x"), layer("a"), layer("b")]]
    apart = [[layer("y"), layer("a")], [layer("b")]]
    rules = ChainRules([usual, usual, apart])
    assert rules.are_chained([layer("a"), layer("b")], 1)
    assert rules.are_chained([layer("z"), layer("a"), layer("b")], 2)
    assert not rules.are_chained([layer("y"), layer("a"), layer("b")], 2)


def test_unknown_layers_are_chained_as_far_as_sizes_were() -> None:
    """Where a pair was never seen, results up to the sizes that stayed on chip are chained, larger ones are not."""
    sizes = [KILOBYTE << shift for shift in range(12)]
    seen = [in_chains([layer(f"a{size}", size), layer(f"b{size}", size)], [True, size > BUFFER]) for size in sizes]
    rules = ChainRules(seen)
    for size, chained in ((BUFFER - 4096, True), (3 * KILOBYTE, True), (3 * BUFFER, False), (100 * BUFFER, False)):
        assert rules.are_chained([layer("other", size), layer("new", size)], 1) == chained
        other = [layer("other", size, "MaxPool"), layer("new", size, "Softmax")]
        assert rules.are_chained(other, 1) == chained


def test_nothing_known_means_no_chains() -> None:
    """Without networks, every layer is a chain of its own."""
    assert ChainRules([]).chains([layer("a"), layer("b")]) == [(0,), (1,)]
