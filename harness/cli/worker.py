"""`harness worker`: offer the devices of this host to a Dask scheduler."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from harness.cli.options import arguments
from harness.cli.terminal.output import note
from harness.errors import UsageError
from harness.workspace import find_workspace


def _pem_file(help: str) -> Any:
    return typer.Option(metavar="FILE.pem", help=help)


AuthorityFile = Annotated[
    Path | None, _pem_file("CA certificate of a TLS scheduler; requires --tls-cert and --tls-key.")
]
CertificateFile = Annotated[Path | None, _pem_file("Certificate of this host.")]
KeyFile = Annotated[Path | None, _pem_file("Key of the certificate.")]


def worker(
    scheduler: Annotated[str, typer.Argument(metavar="SCHEDULER", help="Address of the scheduler: tcp://HOST:8786.")],
    device: Annotated[str | None, arguments.device_option("Names of devices to offer.", "NAME[,NAME…]")] = None,
    group: arguments.Groups = None,
    everything: arguments.Everything = False,
    tls_ca_file: AuthorityFile = None,
    tls_cert: CertificateFile = None,
    tls_key: KeyFile = None,
    workspace: arguments.WorkspaceFolder = None,
) -> None:
    """Offer devices of this host to a Dask scheduler.

    The command runs the jobs that the scheduler sends, until Ctrl-C.

    Example: harness worker tcp://lab-head:8786 --device npu01
    """
    from harness.device.inventory import load_inventory
    from harness.fleet.cluster.access import check_extra, dask_address, tls_files
    from harness.fleet.device_selection import select

    try:
        dask_address(scheduler)
    except ValueError as error:
        raise UsageError(f"{scheduler[:80]!r} {error}") from error
    found = find_workspace(workspace)
    names = arguments.parse_names(device)
    devices = select(load_inventory(found.devices), names=names, groups=group or (), everything=everything)
    tls = tls_files(tls_ca_file, tls_cert, tls_key)
    check_extra()
    from harness.fleet.cluster.dask_worker import serve

    note(f"Offering {', '.join(one.name for one in devices)} to {scheduler}; jobs run in {found.root}")
    serve(scheduler, found, [one.name for one in devices], tls=tls)
