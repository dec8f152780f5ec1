"""A run with a device, without the golden probe and the record of health that `harness.profile` adds."""

import contextlib
import threading
from collections.abc import Callable, Iterator

from harness.device.inventory import Device
from harness.device.session import AgentSession, open_session
from harness.device.variant import NO_VARIANT, Variant
from harness.measure.device_run import DeviceRun, leased_run
from harness.measure.journal.journal import Journal
from harness.measure.progress import Observer, ignore
from harness.workspace import Workspace


@contextlib.contextmanager
def open_run(
    device: Device,
    workspace: Workspace,
    observe: Observer = ignore,
    stop: threading.Event | None = None,
    variant: Variant = NO_VARIANT,
    connect: Callable[[Device], AgentSession] = open_session,
) -> Iterator[DeviceRun]:
    """Connect to a device, lease it, and open the journal of the workspace; raises a DeviceError or JournalError."""
    with (
        connect(variant.device(device)) as session,
        Journal(workspace.journal) as journal,
        leased_run(session, device, journal, observe, stop, variant) as run,
    ):
        yield run
