"""The layers that a device refused to run, as the journal has them."""

from harness.measure.journal.journal import Journal
from harness.workspace import Workspace


def refused_layers(workspace: Workspace, device: str) -> dict[str, str]:
    """Return the device's reason for each layer of which the newest campaign with it has a refused probe, by key."""
    found: dict[str, str] = {}
    if not workspace.journal.exists():
        return found
    with Journal(workspace.journal, to_read=True) as journal:
        for campaign in journal.campaigns(device):
            refused = {probe.id: probe.refused for probe in journal.probes(campaign.id).values()}
            for layer in journal.layers(campaign.id) if any(refused.values()) or found else ():
                found.pop(layer.key.digest, None)
                if reason := refused.get(layer.in_context) or refused.get(layer.null):
                    found[layer.key.digest] = reason
    return found
