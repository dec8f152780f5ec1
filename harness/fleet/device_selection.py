"""Select the devices of a command: by name, by group, or all."""

from collections.abc import Mapping, Sequence

from harness.device.inventory import BUILT_IN, Device, find_device
from harness.errors import UnknownDevice, UsageError


def select(
    inventory: Mapping[str, Device], *, names: Sequence[str] = (), groups: Sequence[str] = (), everything: bool = False
) -> tuple[Device, ...]:
    """Return the devices with these names, then those of the groups, then all, each once.

    `everything` selects the devices of devices.toml, or the built-in ones if it lists none. Raises UnknownDevice for an
    unknown name or group, and UsageError if nothing is selected.
    """
    chosen = {name: find_device(inventory, name) for name in names}
    for group in groups:
        members = {name: device for name, device in inventory.items() if group in device.groups}
        if not members:
            known = sorted({group for device in inventory.values() for group in device.groups})
            why = f"Known groups: {', '.join(known)}" if known else "No device has a group"
            step = 'Give devices groups in devices.toml: groups = ["NAME"]'
            raise UnknownDevice(f"There is no device in group {group[:80]!r}", why=why, next_step=step)
        chosen.update(members)
    if everything:
        own = {name: device for name, device in inventory.items() if name not in BUILT_IN}
        chosen.update(own or inventory)
    if not chosen:
        raise UsageError("No device is selected", next_step="Name one with --device, or give --group or --all")
    return tuple(chosen.values())
