"""The errors that `harness` raises on purpose, as one tree.

::

    HarnessError                     exit 1    a bug in harness, unless a subclass says otherwise
    ├── UsageError                   exit 2    the command line is contradictory or incomplete
    ├── InputError                   exit 3    a file or a setting is invalid
    │   ├── ConfigurationError                 devices.toml, harness.toml, nightly.toml, the workspace
    │   │   └── UnknownDevice
    │   ├── NetworkError                       the ONNX file
    │   │   ├── InvalidNetwork
    │   │   ├── UnsupportedNetwork
    │   │   │   └── UnsupportedType
    │   │   ├── UnresolvedDimension
    │   │   └── NetworksRefused
    │   ├── LutError                           a lookup table
    │   │   ├── LutCorrupt
    │   │   ├── LutMismatch
    │   │   └── LutNotFound
    │   └── JournalError                       the journal of samples
    │       └── ExtractRefused
    ├── DeviceError                  exit 4    the device cannot be reached or used
    │   ├── DeviceUnreachable
    │   ├── HostKeyError
    │   ├── AuthenticationError
    │   ├── DeviceBusy
    │   ├── LeaseLost
    │   ├── LinkLost
    │   ├── ProtocolError
    │   ├── WorkerDied
    │   ├── BackendError
    │   ├── OutOfService
    │   ├── NightBusy
    │   └── EngineError
    ├── MeasurementError             exit 5    the samples do not give a result
    │   ├── CampaignIncomplete
    │   │   └── DeviceTooSlow
    │   ├── DeviceQuarantined
    │   ├── DeviceUnsteady
    │   ├── MachineNoisy
    │   └── IllConditionedDesign
    ├── CoverageError                exit 6    the table does not have all layers of a network
    ├── RegressionFound              exit 7    something became slower
    └── Interrupted                  exit 130  the user pressed Ctrl-C

Each error says what happened, why, and the next step; `unset` are the dimensions and inputs that need a value, and
`advice` adds how to give it. `fault` names the side that caused it. `retry_helps` is true if the same command may
succeed later without any change.
"""

from __future__ import annotations

import itertools
import traceback
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import ClassVar, Literal

from harness.text import sentences, shortened

Fault = Literal["user", "device", "link", "harness"]

_GRAVEST_FIRST = (1, 3, 2, 4, 5, 6, 7)


def gravest(codes: Iterable[int]) -> int:
    """Return the exit code of a command with several results: the gravest of theirs, 0 if all are 0."""
    ranks = {code: rank for rank, code in enumerate(_GRAVEST_FIRST)}
    return min((code for code in codes if code), key=lambda code: ranks.get(code, -1), default=0)


CHECK_FILE = "Check the path, the permissions and the disk, then run the same command again"
"""The next step after the system refused to read or write a file."""


def reason_of(error: Exception) -> str:
    """Return the reason of an error of the system, without its number and path."""
    return getattr(error, "strerror", None) or str(error)


class HarnessError(Exception):
    """What happened (`what`), why (`why`), what to do about it (`next_step`), and what needs a value for it (`unset`).

    Subclasses inherit the class variables, or set them as keywords of the class statement.
    """

    exit_code: ClassVar[int] = 1
    fault: ClassVar[Fault] = "harness"
    retry_helps: ClassVar[bool] = False
    default_step: ClassVar[str] = ""
    """The next step of an error that states none."""

    def __init_subclass__(
        cls,
        *,
        exit_code: int | None = None,
        fault: Fault | None = None,
        retry_helps: bool | None = None,
        default_step: str | None = None,
    ) -> None:
        super().__init_subclass__()
        cls.exit_code = cls.exit_code if exit_code is None else exit_code
        cls.fault = cls.fault if fault is None else fault
        cls.retry_helps = cls.retry_helps if retry_helps is None else retry_helps
        cls.default_step = cls.default_step if default_step is None else default_step

    def __init__(self, what: str, *, why: str = "", next_step: str = "", unset: Iterable[str] = ()) -> None:
        super().__init__(what)
        self.what = what
        self.why = why
        self.unset = tuple(name[:80] for name in unset)[:3]
        self.next_step = next_step or ("" if self.unset else self.default_step)

    def __str__(self) -> str:
        return sentences(self.what, self.why, advice(self, "dims={}".format))

    def _render_traceback_(self) -> list[str]:
        """Return the lines that a notebook shows: the caller's line instead of those of harness, unless it is a bug."""
        if self.exit_code == 1:
            raise NotImplementedError  # the notebook then shows all lines
        frames = traceback.walk_tb(self.__traceback__)
        callers = itertools.takewhile(
            lambda one: str(one[0].f_globals.get("__name__")).split(".")[0] != __package__, frames
        )
        *_, (_, line) = [(None, 1), *callers]
        parts = (("  why: ", self.why), ("  next: ", advice(self, "dims={}".format)))
        what = f"{type(self).__name__} in line {line}: {self.what}"
        return [what, *(label + text for label, text in parts if text)]


@dataclass(frozen=True)
class ErrorRecord:
    """An error as plain data, which threads, processes and hosts can pass on; `kind` is the name of its class."""

    kind: str
    what: str
    why: str
    next_step: str
    unset: tuple[str, ...] = field(default=(), kw_only=True)

    @property
    def error_class(self) -> type[HarnessError]:
        """The class of the error; raises ValueError if harness has none of this name."""
        found = globals().get(self.kind)
        if not (isinstance(found, type) and issubclass(found, HarnessError)):
            raise ValueError("an error has an unknown kind")
        return found

    def error(self) -> HarnessError:
        """Return the error for a caller to raise; raises ValueError if its kind is unknown."""
        return self.error_class(self.what, why=self.why, next_step=self.next_step, unset=self.unset)


def record_of(error: HarnessError, limit: int | None = None) -> ErrorRecord:
    """Return an error as data; with a limit, texts of at most so many characters."""
    texts = error.what, error.why, error.next_step
    what, why, next_step = texts if limit is None else (shortened(text)[:limit] for text in texts)
    return ErrorRecord(type(error).__name__, what, why, next_step, unset=error.unset)


def advice(error: HarnessError | ErrorRecord, example: Callable[[Mapping[str, int]], str] | None = None) -> str:
    """Return the next step; `example` writes values as the user gives them: in Python, in a command, in a plan."""
    names = " and ".join(map(repr, error.unset))
    shown = f", for example {example(dict.fromkeys(error.unset, 1))}" if names and example else ""
    return sentences(f"Give {names} a value{shown}" if names else "", error.next_step)


def bug(
    error: BaseException,
    what: str = "This is a bug in harness",
    next_step: str = "Run `harness --debug …` and report it",
) -> HarnessError:
    """Return the error for an unexpected exception, which is its cause."""
    found = HarnessError(what, why=f"{type(error).__name__}: {error}", next_step=next_step)
    found.__cause__ = error
    return found


class UsageError(HarnessError, exit_code=2, fault="user"):
    """The command line is contradictory or incomplete."""


class InputError(HarnessError, exit_code=3, fault="user"):
    """A file or a setting is invalid."""


class ConfigurationError(InputError):
    """A settings file or the workspace is invalid, or a file cannot be read or written."""


class UnknownDevice(ConfigurationError):
    """No device of this name is built in or listed in devices.toml."""


class NetworkError(InputError):
    """The ONNX file cannot be used."""


class InvalidNetwork(NetworkError, default_step="Copy or export the file again"):
    """The file is not valid ONNX, or refers to files outside its own folder."""


class UnsupportedNetwork(NetworkError, default_step="Export only the part of it that can be measured"):
    """The file is valid ONNX that harness cannot cut or measure."""


class UnsupportedType(UnsupportedNetwork):
    """A tensor has an element type that is not measured, or a result is not a tensor."""


class UnresolvedDimension(NetworkError):
    """A symbolic dimension has no value; the error names the tensor, and the dimension or input in `unset`."""


class NetworksRefused(NetworkError):
    """Networks of a list cannot be used; `why` has a line for each, with its file and the reason."""


class LutError(InputError):
    """A lookup table cannot be used."""


class LutCorrupt(LutError):
    """The table was edited or truncated, or another program or schema wrote it."""


class LutMismatch(LutError):
    """The table belongs to another device."""


class LutNotFound(LutError):
    """There is no table for this device yet."""


class JournalError(InputError):
    """The journal of samples cannot be read or written."""


class ExtractRefused(JournalError, fault="link"):
    """The part of a journal that another host sent is invalid or was altered; nothing of it was merged."""


class DeviceError(HarnessError, exit_code=4, fault="device", retry_helps=True):
    """The device cannot be reached or used."""


class DeviceUnreachable(DeviceError, fault="link"):
    """No agent answered: closed port, no route, no banner, or no agent program."""


class HostKeyError(DeviceError, fault="user", retry_helps=False):
    """The device's host key is unknown or has changed."""


class AuthenticationError(DeviceError, fault="user", retry_helps=False):
    """The device refused the identity."""


class DeviceBusy(DeviceError):
    """Another process or person holds the lease of the device."""


class LeaseLost(DeviceError, fault="link"):
    """The lease ran out or was superseded; nothing more may be written."""


class LinkLost(DeviceError, fault="link"):
    """The connection ended before the agent's end record; the campaign can be resumed."""


class ProtocolError(DeviceError, retry_helps=False, default_step="Install the agent of this version on the device"):
    """The agent sent messages that break the protocol."""


class WorkerDied(DeviceError):
    """The worker process on the device crashed, hung or was killed; the campaign can be resumed."""


class BackendError(DeviceError, retry_helps=False):
    """The runtime on the device refused a probe."""


class OutOfService(DeviceError, fault="user", retry_helps=False):
    """The device was marked as in maintenance or retired."""


class NightBusy(DeviceError, fault="user"):
    """Another nightly run is active in this workspace."""


class EngineError(DeviceError, fault="link"):
    """The scheduler that runs jobs cannot be reached, or has no worker for them."""


class MeasurementError(HarnessError, exit_code=5, fault="device"):
    """The samples do not give a result."""


class CampaignIncomplete(MeasurementError, retry_helps=True):
    """The campaign stopped before every probe had its minimum of samples."""


class DeviceTooSlow(CampaignIncomplete):
    """The device did not finish within the wall time of its job; a later run continues the campaign."""


class DeviceQuarantined(MeasurementError):
    """The golden probe is outside the device's band, so measurements cannot be trusted."""


class DeviceUnsteady(MeasurementError):
    """The device's speed changed too much during the campaign; its samples are kept and enter no table."""


class MachineNoisy(MeasurementError, retry_helps=True):
    """Latencies differ so much between processes that the result does not answer the question."""


class IllConditionedDesign(MeasurementError, fault="user"):
    """The null probes do not separate a, b and c, because of their sizes, or of their noise; the error says which."""


class CoverageError(HarnessError, exit_code=6, fault="user"):
    """The table does not have all layers of the network."""


class RegressionFound(HarnessError, exit_code=7, fault="device"):
    """A layer, a network or the device became slower than on earlier nights."""


class Interrupted(HarnessError, exit_code=130, fault="user", retry_helps=True):
    """The user stopped the command; the samples so far are kept."""


class DamagedFileWarning(UserWarning):
    """A file of the workspace is ignored: a table without its manifest, or samples of a damaged journal."""
