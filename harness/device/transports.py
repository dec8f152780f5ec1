"""Which way leads to a device's agent."""

from __future__ import annotations

from harness.device.inventory import Device, Ssh
from harness.device.local import LocalTransport
from harness.device.ssh import SshTransport
from harness.device.transport import Transport


def transport_of(device: Device) -> Transport:
    """The transport that the device's settings ask for."""
    if isinstance(device.transport, Ssh):
        return SshTransport(device.name, device.transport)
    return LocalTransport()
