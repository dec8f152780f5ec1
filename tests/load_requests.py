"""Requests to load a model without a session, for tests of backends."""

from device_agents.messages import LoadRequest
from harness.network.assemble import AssembledModel


def request_of(model: AssembledModel, probe: str = "p", *, reveal: bool = False, runs: bool = True) -> LoadRequest:
    """Return the model as a probe of this name."""
    weights, inputs = ([spec.wire() for spec in specs] for specs in (model.weights, model.inputs))
    return LoadRequest(probe, model.content, weights, inputs, model.output_bytes, reveal, runs)
