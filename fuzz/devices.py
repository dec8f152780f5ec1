"""The reader of the devices file: TOML with all keys, and values that no key accepts."""

import json
import random
from pathlib import Path

from fuzz.mutation import TEXTS, mutate_bytes, mutate_text
from fuzz.outcome import Outcome
from harness.device.inventory import find_device, load_inventory
from harness.errors import ConfigurationError, UnknownDevice

_SEED = """\
[devices.board]
backend = "onnxruntime"
resource = "cpu"
groups = ["edge", "shelf-2"]
golden_ms = [1.9, 2.2]
options = {threads = 2, words = ["--model", "{model}"]}
transport = "ssh"
host = "10.0.0.7"
port = 2222
user = "harness"
identity = "key"
known_hosts = "known_hosts"
key_agent = "SSH_AUTH_SOCK"
ssh_config = "none"
proxy_jump = "me@gate:2222,inner"
agent = "push"
python = "/usr/bin/python3"
connect_timeout_s = 5.0
banner_timeout_s = 7.5
auth_timeout_s = 20

[devices.npu02]
backend = "emulated-npu"
resource = "npu02"
exclusive = true
[devices.npu02.options]
preset = "edge"
noise = 0.01

[devices.here]
transport = "local"

[devices.phone]
transport = "adb"
serial = "192.168.1.5:5555"
adb = "/opt/platform-tools/adb"
folder = "/data/local/tmp/harness"
"""
_DEVICE_KEYS = ("backend", "resource", "options", "transport", "agent", "python", "kind", "name", "groups", "golden_ms")
_SSH_KEYS = ("host", "port", "user", "identity", "known_hosts", "key_agent", "ssh_config", "proxy_jump")
_TIMEOUT_KEYS = ("connect_timeout_s", "banner_timeout_s", "auth_timeout_s")
_ADB_KEYS = ("serial", "adb", "folder")
_KEYS = (*_DEVICE_KEYS, *_SSH_KEYS, *_ADB_KEYS, *_TIMEOUT_KEYS, "exclusive", "extra")
_NUMBERS = ("0", "-1", "70000", "65535", "nan", "-inf", "1e400", "1.5", "9" * 5000, "0x" + "f" * 5000, "0o7", "1_000")
_PLAIN = ("true", "1979-05-27", "07:32:00", '"local"', '"ssh"', '"push"', '"null"', '"command"', '"open"', "'x'", '"."')
_TRICKY = ('"~/key"', '"~nobody-here/key"', '"a\\u0000b"', '"""\na\n"""', '"' + "k" * 5000 + '"')
_LISTS = ("[]", "[[1, 2], {a = 1}]", "[" * 3000 + "]" * 3000, '["a", "b"]', '["--x", "{model}"]')
_TABLES = ("{}", "{threads = [1, 2]}", "{a = {b = 1}}")
_VALUES = (*_NUMBERS, *_PLAIN, *_TRICKY, *_LISTS, *_TABLES)


_ACCEPTED: dict[str, tuple[str, ...]] = {
    "groups": ("[]", '["edge"]', '["a", "b-1", "c_2"]'),
    "golden_ms": ("[1.0, 2.0]", "[0.001, 1e6]", "[3, 3.5]"),
    "options": ("{}", "{threads = 1}", '{threads = 4, words = ["a"]}'),
    "host": ('"10.0.0.7"', '"board.lab"', '"::1"', '"a-b.c"'),
    "port": ("1", "22", "65535"),
    "user": ('"harness"', '"root"', '"x_1"'),
    "key_agent": ('"SSH_AUTH_SOCK"', '"agent.sock"'),
    "ssh_config": ('"none"', '"config"'),
    "proxy_jump": ('"gate"', '"me@gate:2222"', '"a,b,c"'),
    "agent": ('"push"', '"installed"', '"/opt/harness/agent"'),
    "python": ('"python3"', '"/usr/bin/python3.9"'),
    "connect_timeout_s": ("1", "30.5"),
    "banner_timeout_s": ("1", "30.5"),
    "auth_timeout_s": ("1", "30.5"),
    "preset": ('"edge"', '"npu01"'),
    "noise": ("0", "1"),
    "exclusive": ("true", "false"),
    "resource": ('"cpu"', '"npu-1"'),
    "backend": ('"onnxruntime"', '"null"', '"emulated-npu"'),
    "serial": ('"emulator-5554"', '"192.168.1.5:5555"'),
    "folder": ('"/data/local/tmp/harness"', '"/sdcard/h"'),
}
"""Values that keys accept, as far as their device has them."""
_DEVICES = (
    '[devices.NAME]\nbackend = "null"\n',
    '[devices.NAME]\nbackend = "onnxruntime"\nresource = "cpu"\ngroups = ["edge"]\n',
    '[devices.NAME]\ntransport = "ssh"\nhost = "h"\nuser = "u"\nidentity = "key"\n',
    '[devices.NAME]\ntransport = "adb"\nserial = "emulator-5554"\nfolder = "/data/local/tmp/h"\n',
)


def read(data: bytes, folder: Path) -> Outcome:
    """Read the devices.toml of a folder that also has a private key, and a key that all users may read."""
    if not (folder / "key").exists():
        for name, mode in (("key", 0o600), ("open", 0o644)):
            (folder / name).write_text("no key")
            (folder / name).chmod(mode)
    path = folder / "devices.toml"
    path.write_bytes(data)
    try:
        inventory = load_inventory(path)
    except ConfigurationError:
        return Outcome.REFUSED
    for name in (*inventory, data[:40].decode("latin-1")):
        try:
            repr(find_device(inventory, name))
        except UnknownDevice:
            continue
    return Outcome.ACCEPTED


def seeds() -> list[bytes]:
    """Return a file with all keys, and small files."""
    small = ("", "[devices.a]\n", '[devices]\na = {backend = "null"}\n', "\ufeff[devices.a]\r\n")
    return [text.encode() for text in (_SEED, *small)]


def mutate(data: bytes, draw: random.Random) -> bytes:
    """Remove, repeat, move or add lines, rename keys, replace values; sometimes change bytes."""
    text = data.decode("utf-8", "replace")
    if draw.random() < 0.15:
        return mutate_bytes(data, draw)
    lines = text.split("\n")
    if draw.random() < 0.6:
        return _edited(lines, draw)
    at = draw.randrange(len(lines))
    key, equals, value = lines[at].partition(" = ")
    kind = draw.randrange(7)
    if kind == 0:
        del lines[at]
    elif kind == 1:
        lines.insert(draw.randrange(len(lines) + 1), lines[at])
    elif kind == 2:
        lines.insert(at, f"{draw.choice(_KEYS)} = {_value(draw)}")
    elif kind == 3 and equals:
        lines[at] = f"{draw.choice((*_KEYS, json.dumps(draw.choice(TEXTS))))} = {value}"
    elif kind == 4:
        name = draw.choice(("board", "npu01", "a.b", '"a b"', "'-x'", json.dumps(draw.choice(TEXTS)), "x" * 70))
        lines.insert(at, f"[{draw.choice(('devices', 'devices', 'other', '[devices'))}.{name}]")
    elif equals and kind == 5:
        lines[at] = f"{key} = {mutate_text(value, draw)}"
    else:
        lines[at] = f"{key if equals else draw.choice(_KEYS)} = {_value(draw)}"
    return "\n".join(lines).encode("utf-8", "surrogatepass")


def _edited(lines: list[str], draw: random.Random) -> bytes:
    """Change a value for another that its key accepts, leave a key out, or name a device otherwise."""
    places = [at for at, line in enumerate(lines) if line.partition(" = ")[0] in _ACCEPTED]
    heads = [at for at, line in enumerate(lines) if line.startswith("[devices.") and line.count(".") == 1]
    kind = draw.random()
    if places and kind < 0.6:
        at = draw.choice(places)
        key = lines[at].partition(" = ")[0]
        lines[at] = f"{key} = {draw.choice(_ACCEPTED[key])}"
    elif places and kind < 0.7:
        del lines[draw.choice(places)]
    elif heads and kind < 0.8:
        lines[draw.choice(heads)] = f"[devices.{draw.choice(('a', 'npu-7', 'b_1', 'x' * 60))}]"
    else:
        extra = draw.choice(_DEVICES).replace("NAME", f"d{draw.randrange(1000)}")
        lines += extra.split("\n")
    return "\n".join(lines).encode("utf-8", "surrogatepass")


def _value(draw: random.Random) -> str:
    return draw.choice(_VALUES) if draw.random() < 0.7 else json.dumps(draw.choice(TEXTS))
