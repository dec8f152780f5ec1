"""Layers of several networks: each batch has caches of its own, and differences are taken within it."""

from collections.abc import Mapping

from hypothesis import given, settings, strategies as st
from test_estimators_disagree import (
    LAYER,
    LAYER_S,
    PLACE,
    PRODUCER_S,
    ROLES,
    TERMS,
    calibration,
    contents_s,
    measured,
    overhead_s,
)

from harness.latency.estimators import LayerLatencies, estimate_layers
from harness.latency.layer_latency import CampaignData
from harness.measure.summary import Measurement

SLOWER_S = st.lists(st.floats(0, 1e-3), min_size=2, max_size=5)


OWN_S = {name: overhead_s(TERMS[name]) + held_s for name, held_s in contents_s().items()}


def solved(own: Mapping[str, Measurement], batches: Mapping[str, Mapping[int, Measurement]]) -> LayerLatencies:
    """Return the layer from these totals over all batches, and of each batch."""
    probes, totals, overhead = calibration()
    roles = {**dict.fromkeys(probes, "calibration"), **ROLES}
    terms = {**{name: probe.terms for name, probe in probes.items()}, **TERMS}
    return estimate_layers(CampaignData([LAYER], [], roles, terms, {}, {**totals, **own}, batches), "joint", overhead)


def estimated(nulls_s: list[float], contexts: range) -> LayerLatencies:
    """Return the layer from batches that are slower by `nulls_s`, of which `contexts` have the layer itself.

    Totals over all batches are means, as if samples of all batches were thrown together.
    """
    batches = {
        "without": {at: measured(OWN_S["without"] + slower_s) for at, slower_s in enumerate(nulls_s)},
        "within": {at: measured(OWN_S["within"] + nulls_s[at]) for at in contexts},
    }
    own = {name: measured(total_s) for name, total_s in OWN_S.items()}
    for name, taken in batches.items():
        own[name] = measured(sum(one.latency_s for one in taken.values()) / len(taken))
    return solved(own, batches)


@given(SLOWER_S)
@settings(max_examples=12)
def test_a_layer_is_compared_with_its_null_probe_of_the_same_batch(nulls_s: list[float]) -> None:
    """Slower null probes of other batches make no layer shorter; in every batch, a layer has a smaller error."""
    one, every = (estimated(nulls_s, contexts).latencies[PLACE] for contexts in (range(1), range(len(nulls_s))))
    for found in (one, every):
        assert abs(found.remainder_s - LAYER_S) < 1e-3 * LAYER_S
    assert every.remainder_stderr_s < one.remainder_stderr_s


def test_without_a_common_batch_all_samples_count() -> None:
    """A layer whose null probe is in other batches only is estimated from the totals over all batches."""
    own = {name: measured(total_s) for name, total_s in OWN_S.items()}
    found = solved(own, {"without": {0: measured(PRODUCER_S)}, "within": {1: own["within"]}})
    assert abs(found.latencies[PLACE].remainder_s - LAYER_S) < 1e-3 * LAYER_S
