"""The devices of a workspace: some are built in, devices.toml lists the others.

::

    [devices.board]
    transport = "ssh"            # or "local", "adb"
    host = "board.lab"
    user = "harness"
    identity = "keys/board"      # relative to the folder of devices.toml
    key_agent = "keys/agent"     # the socket of the key agent that holds it; without this, no agent is used
    proxy_jump = "me@gate.lab"   # bastions on the way; or "none"
    ssh_config = "none"          # the default is ~/.ssh/config, for settings that are not given here
    known_hosts = "known_hosts"  # this is the default
    backend = "onnxruntime"      # this is the default; or "openvino", "command"
    groups = ["edge", "shelf-2"] # names under which `harness profile --group` finds it
    golden_ms = [1.9, 2.2]       # band of the golden probe; measured on first contact if not given
    exclusive = true             # one controller at a time; false is the default of emulated devices

    [devices.board.options]
    threads = 1
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, ValidationInfo

from device_agents.backends import BACKENDS
from harness.arguments import checked
from harness.errors import UnknownDevice
from harness.settings import check_settings, invalid_key, read_toml
from harness.strict_model import StrictModel
from harness.text import SAFE_NAME_RULE, did_you_mean, is_safe_name, printable, safe_name

_RESOURCE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}\Z")
KEY_AGENT_OF_SESSION = Path("SSH_AUTH_SOCK")
"""In place of a socket: the one that the environment variable names."""
_DEVICE_KEYS = ("backend", "options", "resource", "exclusive", "groups", "golden_ms")


def _plain(value: str) -> str:
    if not value or value.startswith("-") or any(character.isspace() or ord(character) < 33 for character in value):
        raise ValueError("must be text without spaces that does not begin with a dash")
    return value


def _backend(value: str) -> str:
    if value not in BACKENDS:
        raise ValueError(f"must be one of {', '.join(BACKENDS)}")
    return value


def _resource(value: str) -> str:
    if not _RESOURCE.match(value):
        raise ValueError(SAFE_NAME_RULE)
    return value


def _band(value: tuple[float, float] | None) -> tuple[float, float] | None:
    if value is not None and not 0 < value[0] < value[1]:
        raise ValueError("must be two numbers, the lower one first, above zero")
    return value


def _is_real(checked: Mapping[str, Any]) -> bool:
    """Whether the device of a backend runs on the cores or the chip of a machine, where others would disturb it."""
    backend = checked.get("backend", "")
    return backend not in BACKENDS or not BACKENDS[backend].virtual


def _exclusive(value: bool, info: ValidationInfo) -> bool:
    if not value and _is_real(info.data):
        raise ValueError("must be true: another measurement would disturb the clock of this backend")
    return value


_Word = Annotated[str, AfterValidator(_plain)]
_Finite = Annotated[float, Field(allow_inf_nan=False)]
_Milliseconds = Annotated[float, Field(gt=0, le=3.6e6, allow_inf_nan=False)]
_Integer = Annotated[int, Field(ge=-(2**63), lt=2**63)]
_Option = bool | _Integer | _Finite | str
_Seconds = Annotated[float, Field(gt=0, le=600, allow_inf_nan=False)]


class Local(StrictModel):
    """The agent runs as a subprocess on this machine."""

    kind: Literal["local"] = "local"


class Ssh(StrictModel):
    """The agent runs on another machine and is reached over SSH with an explicit key.

    What is None comes from the file `ssh_config`, if that is given, by the alias `host`; see `ssh_target.resolve`.
    """

    kind: Literal["ssh"] = "ssh"
    host: _Word
    port: Annotated[int, Field(ge=1, le=65535)] | None = None
    user: _Word | None = None
    identity: Path | None = None
    key_agent: Path | None = None
    known_hosts: Path
    ssh_config: Path | None = None
    proxy_jump: _Word | None = None
    agent: Literal["forced", "push"] = "forced"
    python: _Word = "python3"
    connect_timeout_s: _Seconds = 10.0
    banner_timeout_s: _Seconds = 15.0
    auth_timeout_s: _Seconds = 20.0


class Adb(StrictModel):
    """The agent runs on an Android device and is reached with adb, by the device's serial number.

    `folder` on the device holds the agent and its leases; `python` is the interpreter there, or a script that runs one.
    """

    kind: Literal["adb"] = "adb"
    serial: _Word
    adb: _Word = "adb"
    python: _Word = "python3"
    folder: Annotated[str, Field(pattern=r"\A/[A-Za-z0-9._/-]{1,200}\z")] = "/data/local/tmp/harness"
    connect_timeout_s: _Seconds = 30.0


class Device(StrictModel):
    """One device: its backend, the resource that it occupies, and how to reach it.

    An `exclusive` device is leased: one controller measures at a time. Emulated devices have a clock of their own and
    need no lease, unless devices.toml asks for one.
    """

    name: str
    backend: Annotated[str, AfterValidator(_backend)] = "onnxruntime"
    options: Mapping[str, _Option | list[str] | dict[str, _Option]] = Field(default_factory=dict)
    resource: Annotated[str, AfterValidator(_resource)]
    exclusive: Annotated[bool, AfterValidator(_exclusive)] = Field(default_factory=_is_real)
    groups: Annotated[tuple[Annotated[str, AfterValidator(safe_name)], ...], Field(strict=False)] = ()
    golden_ms: Annotated[tuple[_Milliseconds, _Milliseconds] | None, Field(strict=False), AfterValidator(_band)] = None
    transport: Local | Ssh | Adb = Field(default_factory=Local, discriminator="kind")

    @property
    def board(self) -> str:
        """Host and resource of the device; devices of one board are measured one after the other."""
        host = "local"
        if isinstance(self.transport, Ssh):
            host = f"{self.transport.host}:{self.transport.port or 22}"
        elif isinstance(self.transport, Adb):
            host = f"adb:{self.transport.serial}"
        return f"{host}/{self.resource}"


_TRANSPORTS: Mapping[str, frozenset[str]] = {
    kind: frozenset(model.model_fields) - {"kind"} for kind, model in (("local", Local), ("ssh", Ssh), ("adb", Adb))
}
"""The keys of each transport in devices.toml."""

_BLIND = {"preset": "edge", "reveals": ""}
BUILT_IN: Mapping[str, Device] = MappingProxyType(
    {
        device.name: device
        for device in (
            Device(name="npu01", backend="emulated-npu", options={"preset": "edge"}, resource="npu01"),
            Device(name="npu01-blind", backend="emulated-npu", options=_BLIND, resource="npu01-blind"),
            Device(name="cpu01", options={"threads": 1}, resource="cpu"),
            Device(name="cpu-openvino", backend="openvino", options={"threads": 1}, resource="cpu"),
            Device(name="null01", backend="null", resource="null01"),
        )
    }
)


MOST_DEVICES = 2000
"""The most devices of a file; 20,000 took ten seconds to read."""


@checked()
def load_inventory(path: str | os.PathLike[str] | None) -> Mapping[str, Device]:
    """Return the built-in devices and those of devices.toml by name; a missing file adds none."""
    devices = dict(BUILT_IN)
    path = None if path is None else Path(path)
    if path is not None and (path.exists() or path.is_symlink()):
        tables = _tables(path)
        if len(tables) > MOST_DEVICES:
            why = f"lists {len(tables):,} devices; the limit is {MOST_DEVICES:,}"
            raise invalid_key(path, "devices", why, "Divide the lab between several workspaces")
        for name, table in tables.items():
            if name in BUILT_IN:
                raise invalid_key(path, f"devices.{name}", "is the name of a built-in device", "Use a different name")
            devices[name] = _device(path, name, table)
    return MappingProxyType(devices)


def find_device(inventory: Mapping[str, Device], name: str) -> Device:
    """Return the device of that name; raises UnknownDevice, which lists similar names."""
    if name in inventory:
        return inventory[name]
    why = did_you_mean(name, sorted(inventory), "Known devices")
    next_step = "List devices with `harness devices list`, or add this one to devices.toml"
    raise UnknownDevice(f"There is no device {printable(name, 80)!r}", why=why, next_step=next_step)


def _tables(path: Path) -> dict[str, Any]:
    content = read_toml(path)
    for key in content:
        if key != "devices":
            raise invalid_key(path, key, "is unknown", "Devices are tables [devices.NAME]")
    tables = content.get("devices", {})
    if not isinstance(tables, dict):
        raise invalid_key(path, "devices", "is not a table", "Devices are tables [devices.NAME]")
    return tables


def _device(path: Path, name: str, table: Any) -> Device:
    key = f"devices.{name}" if is_safe_name(name) else f"devices.{name[:80]!r}"
    if not is_safe_name(name):
        raise invalid_key(path, key, "is not a device name", "Use 1 to 64 letters, digits, dots, dashes or underscores")
    if not isinstance(table, dict):
        raise invalid_key(path, key, "is not a table", f"Write [{key}]")
    kind = table.get("transport", "local")
    if not isinstance(kind, str) or kind not in _TRANSPORTS:
        what = f"is {kind[:80]!r}" if isinstance(kind, str) else "is not a text"
        raise invalid_key(path, f"{key}.transport", what, 'Use "local", "ssh" or "adb"')
    settings = {key: value for key, value in table.items() if key not in (*_DEVICE_KEYS, "transport")}
    for setting in settings.keys() - _TRANSPORTS[kind]:
        other = next((one for one, keys in _TRANSPORTS.items() if setting in keys), None)
        if other is not None:
            what = "is unknown for this transport"
            raise invalid_key(path, f"{key}.{setting}", what, f'Add transport = "{other}", or remove the key')
    fields = {key: table[key] for key in _DEVICE_KEYS if key in table}
    backend = fields.get("backend")
    virtual = isinstance(backend, str) and backend in BACKENDS and BACKENDS[backend].virtual
    fields.setdefault("resource", name.lstrip("._-") or "device" if virtual else "cpu")

    def build(_: object) -> Device:
        if kind == "ssh":
            return Device(name=name, transport=_ssh(path, key, settings), **fields)
        transport = Adb.model_validate(settings) if kind == "adb" else Local.model_validate(settings)
        return Device(name=name, transport=transport, **fields)

    known = (*_DEVICE_KEYS, "transport", *sorted(_TRANSPORTS[kind]))
    return check_settings(build, table, path, prefix=key, known=lambda _: known)


def _ssh(path: Path, prefix: str, given: dict[str, Any]) -> Ssh:
    settings = {"known_hosts": "known_hosts", "ssh_config": "~/.ssh/config", **given}
    if settings["ssh_config"] == "none":
        del settings["ssh_config"]
    for key in ("identity", "known_hosts", "ssh_config", "key_agent"):
        value = settings.get(key)
        if key == "key_agent" and value == str(KEY_AGENT_OF_SESSION):
            settings[key] = KEY_AGENT_OF_SESSION
        elif isinstance(value, str):
            try:
                if "\0" in value:
                    raise RuntimeError("it contains a zero byte")
                settings[key] = path.parent.absolute() / Path(value).expanduser()
            except RuntimeError as error:  # ~USER of an unknown user, or a user without a home folder
                if key in given:
                    raise invalid_key(path, f"{prefix}.{key}", f"is not a path: {error}") from error
                del settings[key]
    return Ssh.model_validate(settings)
