"""What of a chain each layer takes: a campaign of chains whose two queues are known."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest

from harness.latency.chain_queues import ChainLayers, Parts, parts_of

SMALL_S, LARGE_S, POWER = 1 / 60e9, 1 / 17e9, 5.0
LARGE_FROM = 1_000_000


@dataclass(frozen=True)
class Campaign:
    """Chains of layers, what their layers do, and what part of its chain each one takes."""

    work: ChainLayers
    chains_s: np.ndarray
    parts: np.ndarray


def campaign(count: int, seed: int, error: float) -> Campaign:
    """Chains of one to six layers; contexts tell what layers compute but for a relative error each."""
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


def found_in(known: Campaign) -> Parts:
    """What a fit makes of it; each chain was measured to 1 %."""
    return parts_of(known.work, known.chains_s, 0.01 * known.chains_s)


def test_exact_chains_tell_what_their_layers_take() -> None:
    """Rates, overlap and the size of large borders come out of the chains alone: all parts are right within 2 %."""
    known = campaign(120, 1, 0.0)
    found = found_in(known)
    assert found.parts == pytest.approx(known.parts, abs=0.02)
    assert np.bincount(known.work.chain, found.parts) == pytest.approx(np.ones(120))


def test_a_chain_that_moves_much_is_parted_by_what_it_moves() -> None:
    """A layer whose context is a tenth of its neighbour's takes most of a chain of which it moves all."""
    known = campaign(120, 2, 0.1)
    owner, borders = [*known.work.chain, 120, 120], [*known.work.borders, (), (5_000_000, 5_000_000)]
    context = np.append(known.work.context_s, [1e-4, 1e-5])
    work = ChainLayers(owner, context, borders, np.append(known.work.weight_bytes, [0.0, 0.0]))
    chains_s = np.append(known.chains_s, 1e7 * LARGE_S)
    found = parts_of(work, chains_s, 0.01 * chains_s)
    assert found.parts[-1] > 0.95
    by_context = parts_of(ChainLayers(owner, context, [()] * len(owner), 0 * context), chains_s, 0.01 * chains_s)
    assert by_context.parts[-2:] == pytest.approx([10 / 11, 1 / 11])


@pytest.mark.parametrize("error", [0.05, 0.2, 0.5])
def test_doubts_grow_with_the_errors_of_contexts(error: float) -> None:
    """90 % intervals hold in 85 to 100 % of the layers that share a chain, whatever their contexts are off by."""
    held = []
    for seed in range(4):
        known = campaign(80, seed, error)
        found = found_in(known)
        shared = np.bincount(known.work.chain)[known.work.chain] > 1
        held.append((abs(found.parts - known.parts) <= 1.645 * found.doubts)[shared].mean())
    assert np.mean(held) >= 0.85


def test_doubts_say_how_far_contexts_are_off() -> None:
    """Contexts that are off by 50 % leave layers more in doubt than those that are off by 5 %."""
    small, great = (np.median(found_in(campaign(80, 3, error)).doubts) for error in (0.05, 0.5))
    assert great > 3 * small
