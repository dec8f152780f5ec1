"""Requirements of a Dask scheduler: the extra, equal versions, names of resources, TLS files."""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from harness.errors import ConfigurationError, UsageError
from harness.measure.journal.schema import SCHEMA_VERSION
from harness.version import VERSION

REQUEST_FORMAT = 4
"""Changes with the fields of a request or an outcome."""
VERSIONS = (VERSION, f"{SCHEMA_VERSION}, requests {REQUEST_FORMAT}")
"""The versions of harness, and of journal and requests: two texts, so that older versions can show them."""
_ADDRESS = re.compile(r"(tcp|tls)://[A-Za-z0-9._\[\]:-]{1,200}:([0-9]{1,5})\Z")


def dask_address(text: str) -> str:
    """Check the address of a Dask scheduler and return it; raises ValueError."""
    found = _ADDRESS.match(text)
    if not found or not 0 < int(found[2]) < 1 << 16:
        raise ValueError("is not the address of a scheduler; write tcp://HOST:8786")
    return text


def engine_address(text: str) -> str | None:
    """Return the scheduler of an engine `dask=ADDRESS`, None for `local`; raises UsageError."""
    kind, _, address = text.partition("=")
    if text == "local":
        return None
    try:
        if kind != "dask":
            raise ValueError("is neither local nor dask=ADDRESS")
        return dask_address(address)
    except ValueError as error:
        raise UsageError(f"--engine {text[:80]} {error}", next_step="Write --engine dask=tcp://HOST:8786") from error


def resource_of(device: str) -> str:
    """Return the name of the Dask resource that represents a device."""
    return f"device:{device}"


@dataclass(frozen=True)
class TlsFiles:
    """PEM files for a scheduler that requires TLS."""

    authority: Path
    certificate: Path
    key: Path


def tls_files(authority: Path | None, certificate: Path | None, key: Path | None) -> TlsFiles | None:
    """Return the three files, or None; raises UsageError if only some of them are given."""
    given = [path for path in (authority, certificate, key) if path is not None]
    if len(given) in (1, 2):
        step = "Give --tls-ca-file, --tls-cert and --tls-key"
        raise UsageError("TLS needs a certificate authority, a certificate and its key", next_step=step)
    return TlsFiles(*given) if given else None


def check_extra() -> None:
    """Raise ConfigurationError if the extra `cluster` is not installed."""
    try:
        import distributed  # noqa: F401
    except ImportError as error:
        step = "Install it: pip install 'harness[cluster]'"
        raise ConfigurationError("The Dask engine needs the extra `cluster`", why=str(error), next_step=step) from error


def security_of(scheduler: str, tls: TlsFiles | None, role: Literal["client", "worker"]) -> Any:
    """Return Dask's security settings for a role; without files, those of Dask's own configuration.

    Raises ConfigurationError for invalid files, and for a tls:// address without any files.
    """
    import distributed

    library: Any = distributed
    try:
        if tls is None:
            security = library.Security()
        else:
            names = (f"tls_{role}_cert", f"tls_{role}_key")
            files = {"tls_ca_file": str(tls.authority), names[0]: str(tls.certificate), names[1]: str(tls.key)}
            security = library.Security(require_encryption=True, **files)
        ready = security.get_connection_args(role).get("ssl_context") is not None
    except (OSError, ValueError) as error:  # ssl.SSLError is an OSError
        raise ConfigurationError("The TLS files cannot be used", why=str(error)) from error
    if scheduler.startswith("tls://") and not ready:
        step = "Give the authority's file, a certificate and its key"
        raise ConfigurationError(f"The scheduler {scheduler} requires TLS", next_step=step)
    return security
