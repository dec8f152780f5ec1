"""The layers that a device refused to run, from the journal."""

from harness.measure.journal.journal import Journal
from harness.workspace import Workspace


def refused_layers(workspace: Workspace, device: str) -> dict[str, str]:
    """Return why the device refused layers, by key: those of which the newest campaign has a refused probe."""
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
