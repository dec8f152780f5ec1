"""The part of a chain that each layer takes, on a campaign of chains with known queues."""

from dataclasses import dataclass

import numpy as np
import pytest

from harness.latency.chain_shares import ChainFractions, ChainLayers, fractions_of

SMALL_S, LARGE_S, POWER = 1 / 60e9, 1 / 17e9, 5.0
LARGE_FROM = 1_000_000


@dataclass(frozen=True)
class Campaign:
    """Chains, the work of their layers, and the true fraction of its chain that each layer takes."""

    layers: ChainLayers
    chains_s: np.ndarray
    parts: np.ndarray


def campaign(count: int, seed: int, error: float) -> Campaign:
    """Return chains of one to six layers, whose times in context have a relative error each."""
    draw = np.random.default_rng(seed)
    chain = [at for at in range(count) for _ in range(draw.integers(1, 7))]
    compute = 10 ** draw.uniform(-5.5, -4, len(chain))
    sizes = np.geomspace(1e4, 5e6, 24).astype(int).tolist()
    borders = [tuple(sizes[at] for at in draw.integers(0, 24, draw.integers(0, 3))) for _ in chain]
    weights = np.where(draw.random(len(chain)) < 0.5, 10 ** draw.uniform(3, 5.5, len(chain)), 0.0)
    moved = LARGE_S * weights + [
        sum(size * (LARGE_S if size >= LARGE_FROM else SMALL_S) for size in crossing) for crossing in borders
    ]
    computed, transferred = np.bincount(chain, compute), np.bincount(chain, moved)
    total = (computed**POWER + transferred**POWER) ** (1 / POWER)
    decides = (computed / total)[chain] ** POWER
    parts = decides * compute / computed[chain]
    parts += np.divide((1 - decides) * moved, transferred[chain], where=moved > 0, out=np.zeros(len(chain)))
    context = np.hypot(compute * np.exp(error * draw.standard_normal(len(chain))), LARGE_S * weights)
    return Campaign(ChainLayers(chain, context, borders, weights), total, parts)


def found_in(known: Campaign) -> ChainFractions:
    """Return the fitted parts, with each chain measured to 1 %."""
    return fractions_of(known.layers, known.chains_s, 0.01 * known.chains_s)


def test_exact_chains_determine_the_parts_of_their_layers() -> None:
    """From exact chains alone, all parts are correct within 2 % and add up to one for each chain."""
    known = campaign(120, 1, 0.0)
    found = found_in(known)
    assert found.values == pytest.approx(known.parts, abs=0.02)
    assert np.bincount(known.layers.chain, found.values) == pytest.approx(np.ones(120))


def test_a_chain_with_long_transfers_is_divided_by_its_transfers() -> None:
    """A layer that moves all bytes of a chain takes most of it, though its context takes a tenth of the other's."""
    known = campaign(120, 2, 0.1)
    owner, borders = [*known.layers.chain, 120, 120], [*known.layers.borders, (), (5_000_000, 5_000_000)]
    context = np.append(known.layers.context_s, [1e-4, 1e-5])
    layers = ChainLayers(owner, context, borders, np.append(known.layers.weight_bytes, [0.0, 0.0]))
    chains_s = np.append(known.chains_s, 1e7 * LARGE_S)
    found = fractions_of(layers, chains_s, 0.01 * chains_s)
    assert found.values[-1] > 0.95
    by_context = fractions_of(ChainLayers(owner, context, [()] * len(owner), 0 * context), chains_s, 0.01 * chains_s)
    assert by_context.values[-2:] == pytest.approx([10 / 11, 1 / 11])


@pytest.mark.parametrize("error", [0.05, 0.5])
def test_doubts_grow_with_the_errors_of_contexts(error: float) -> None:
    """90 % intervals hold for at least 85 % of the layers that share a chain, at any error of the contexts."""
    held = []
    for seed in range(3):
        known = campaign(80, seed, error)
        found = found_in(known)
        shared = np.bincount(known.layers.chain)[known.layers.chain] > 1
        held.append((abs(found.values - known.parts) <= 1.645 * found.doubts)[shared].mean())
    assert np.mean(held) >= 0.85


def test_doubts_reflect_the_errors_of_contexts() -> None:
    """Errors of 50 % in the contexts give over three times the doubt of errors of 5 %."""
    small, great = (np.median(found_in(campaign(80, 3, error)).doubts) for error in (0.05, 0.5))
    assert great > 3 * small
