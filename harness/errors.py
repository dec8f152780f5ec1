"""Every error that `harness` raises on purpose, as one tree.

::

    HarnessError                     exit 1   a bug of harness, unless a subclass says otherwise
    ├── UsageError                   exit 2   the command line asks for something that makes no sense
    ├── InputError                   exit 3   a file or a setting is invalid
    │   ├── ConfigurationError                devices.toml, harness.toml, workspace
    │   │   └── UnknownDevice
    │   ├── NetworkError                      the ONNX file
    │   │   ├── InvalidNetwork                not a valid ONNX file, or a hostile one
    │   │   ├── UnsupportedNetwork            valid, but outside what harness can measure
    │   │   └── UnresolvedDimension           a symbolic dimension nobody bound
    │   ├── LutError                          a lookup table
    │   │   ├── LutCorrupt                    edited, truncated, wrong schema
    │   │   ├── LutMismatch                   the table of another device
    │   │   └── LutNotFound
    │   └── JournalError                      the journal of samples
    ├── DeviceError                  exit 4   the device cannot be reached or used
    │   ├── DeviceUnreachable                 closed port, no route, no banner
    │   ├── HostKeyError                      unknown or changed host key
    │   ├── AuthenticationError               the device refused our key
    │   ├── DeviceBusy                        somebody else holds the lease
    │   ├── LeaseLost                         our lease ran out or was superseded
    │   ├── LinkLost                          the connection ended before the end record
    │   ├── ProtocolError                     frames that break the protocol
    │   ├── WorkerDied                        the worker process crashed, hung or was killed
    │   ├── BackendError                      the runtime refused a probe
    │   ├── OutOfService                      maintenance or retired, by a person's word
    │   ├── NightBusy                         another nightly runs in this workspace
    │   └── EngineError                       what runs jobs side by side cannot be reached
    ├── MeasurementError             exit 5   the samples do not carry a result
    │   ├── CampaignIncomplete
    │   ├── DeviceQuarantined                 the golden probe left its band
    │   └── IllConditionedDesign              a, b, c cannot be told apart
    ├── CoverageError                exit 6   layers that the table does not hold
    ├── RegressionFound              exit 7   something became slower
    └── Interrupted                  exit 130 the user pressed Ctrl-C

Each error says what happened, why, and the next step; `fault` says on whose side the cause lies and
`retry_helps` whether the same command may succeed later without any change.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import ClassVar, Literal

Fault = Literal["user", "device", "link", "harness"]


_GRAVEST_FIRST = (1, 3, 2, 4, 5, 6, 7)


def gravest(codes: Iterable[int]) -> int:
    """Of several exit codes the one that counts for all; 0 where all are."""
    ranks = {code: rank for rank, code in enumerate(_GRAVEST_FIRST)}
    return min((code for code in codes if code), key=lambda code: ranks.get(code, -1), default=0)


def reason_of(error: Exception) -> str:
    """Return the reason of an error of the system, without its number and path."""
    return getattr(error, "strerror", None) or str(error)


class HarnessError(Exception):
    """What happened (`what`), why (`why`) and what to do about it (`next_step`)."""

    exit_code: ClassVar[int] = 1
    fault: ClassVar[Fault] = "harness"
    retry_helps: ClassVar[bool] = False

    def __init__(self, what: str, *, why: str = "", next_step: str = "") -> None:
        super().__init__(what)
        self.what = what
        self.why = why
        self.next_step = next_step

    def __str__(self) -> str:
        return ". ".join(part.rstrip(".") for part in (self.what, self.why, self.next_step) if part)


class UsageError(HarnessError):
    """The command line asks for something that makes no sense."""

    exit_code = 2
    fault: ClassVar[Fault] = "user"


class InputError(HarnessError):
    """A file or a setting is invalid."""

    exit_code = 3
    fault: ClassVar[Fault] = "user"


class ConfigurationError(InputError):
    """devices.toml, harness.toml or the workspace is invalid."""


class UnknownDevice(ConfigurationError):
    """No device of this name is built in or listed in devices.toml."""


class NetworkError(InputError):
    """The ONNX file cannot be used."""


class InvalidNetwork(NetworkError):
    """Not a valid ONNX file, or one that reaches outside its own folder."""


class UnsupportedNetwork(NetworkError):
    """Valid ONNX, but outside what can be cut and measured."""


class UnresolvedDimension(NetworkError):
    """A dimension has no value; names the tensor and the `--dim` that binds it."""


class LutError(InputError):
    """A lookup table cannot be used."""


class LutCorrupt(LutError):
    """The table was edited, truncated or written by something else."""


class LutMismatch(LutError):
    """The table belongs to another device."""


class LutNotFound(LutError):
    """There is no table for this device yet."""


class JournalError(InputError):
    """The journal of samples cannot be read or written."""


class DeviceError(HarnessError):
    """The device cannot be reached or used."""

    exit_code = 4
    fault: ClassVar[Fault] = "device"
    retry_helps = True


class DeviceUnreachable(DeviceError):
    """No agent answered: closed port, no route, no banner, program missing."""

    fault: ClassVar[Fault] = "link"


class HostKeyError(DeviceError):
    """The device's host key is unknown or differs from the known one; never retried."""

    fault: ClassVar[Fault] = "user"
    retry_helps = False


class AuthenticationError(DeviceError):
    """The device refused the identity; never retried."""

    fault: ClassVar[Fault] = "user"
    retry_helps = False


class DeviceBusy(DeviceError):
    """Somebody else holds the lease of the device's resource."""


class LeaseLost(DeviceError):
    """The lease ran out or a newer fencing token exists; nothing more may be written."""

    fault: ClassVar[Fault] = "link"


class LinkLost(DeviceError):
    """The connection ended before the agent's end record; the campaign can be resumed."""

    fault: ClassVar[Fault] = "link"


class ProtocolError(DeviceError):
    """The peer sent frames that break the protocol."""

    retry_helps = False


class WorkerDied(DeviceError):
    """The worker process on the device crashed, hung or was killed; the campaign can be resumed."""


class BackendError(DeviceError):
    """The runtime on the device refused a probe."""

    retry_helps = False


class OutOfService(DeviceError):
    """Somebody took the device out of service: maintenance, or for good."""

    fault: ClassVar[Fault] = "user"
    retry_helps = False


class NightBusy(DeviceError):
    """Another nightly runs in this workspace; two never overlap."""

    fault: ClassVar[Fault] = "user"


class EngineError(DeviceError):
    """The scheduler that runs jobs cannot be reached, or has no worker for them."""

    fault: ClassVar[Fault] = "link"


class MeasurementError(HarnessError):
    """The samples do not carry a result."""

    exit_code = 5
    fault: ClassVar[Fault] = "device"


class CampaignIncomplete(MeasurementError):
    """The campaign stopped before every probe had its minimum of samples."""

    retry_helps = True


class DeviceQuarantined(MeasurementError):
    """The golden probe is outside the device's band: whatever it would measure now is not to be trusted."""


class IllConditionedDesign(MeasurementError):
    """The sizes of the null probes do not tell a, b and c apart; names the sizes that would."""

    fault: ClassVar[Fault] = "user"


class CoverageError(HarnessError):
    """Layers of the network are not in the table."""

    exit_code = 6
    fault: ClassVar[Fault] = "user"


class RegressionFound(HarnessError):
    """A layer, a network or the device as a whole became slower than it was on earlier nights."""

    exit_code = 7
    fault: ClassVar[Fault] = "device"


class Interrupted(HarnessError):
    """The user stopped the command; what was measured is kept."""

    exit_code = 130
    fault: ClassVar[Fault] = "user"
    retry_helps = True
