"""The devices file: TOML with every key, and values that no key takes."""

from __future__ import annotations

import json
import random
from pathlib import Path

from fuzz.mutation import TEXTS, mutate_bytes, mutate_text
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
agent = "push"
python = "/usr/bin/python3"
connect_timeout_s = 5.0
banner_timeout_s = 7.5
auth_timeout_s = 20

[devices.npu02]
backend = "emulated-npu"
resource = "npu02"
[devices.npu02.options]
preset = "edge"
noise = 0.01

[devices.here]
transport = "local"
"""
_KEYS = (
    "backend", "resource", "options", "transport", "host", "port", "user", "identity", "known_hosts", "agent", "python",
    "connect_timeout_s", "banner_timeout_s", "auth_timeout_s", "kind", "name", "groups", "golden_ms", "extra",
)  # fmt: skip
_VALUES = (
    "0", "-1", "70000", "65535", "nan", "-inf", "1e400", "1.5", "true", "[]", "{}", "[[1, 2], {a = 1}]", "1979-05-27",
    "07:32:00", "9" * 5000, "0x" + "f" * 5000, "0o7", "1_000", '"local"', '"ssh"', '"push"', '"null"', '"command"',
    '"~/key"', '"~nobody-here/key"', '"a\\u0000b"', '"open"', '"."', '"""\na\n"""', "'x'", '"' + "k" * 5000 + '"',
    "[" * 3000 + "]" * 3000, '["a", "b"]', "{threads = [1, 2]}", "{a = {b = 1}}", '["--x", "{model}"]',
)  # fmt: skip


def read(data: bytes, folder: Path) -> bool:
    """Reads a folder's devices.toml, beside which lie a key, and one that everybody may read."""
    if not (folder / "key").exists():
        for name, mode in (("key", 0o600), ("open", 0o644)):
            (folder / name).write_text("no key")
            (folder / name).chmod(mode)
    path = folder / "devices.toml"
    path.write_bytes(data)
    try:
        inventory = load_inventory(path)
    except ConfigurationError:
        return False
    for name in (*inventory, data[:40].decode("latin-1")):
        try:
            repr(find_device(inventory, name))
        except UnknownDevice:
            continue
    return True


def seeds() -> list[bytes]:
    """A file with every key, and small ones."""
    small = ("", "[devices.a]\n", '[devices]\na = {backend = "null"}\n', "\ufeff[devices.a]\r\n")
    return [text.encode() for text in (_SEED, *small)]


def mutate(data: bytes, draw: random.Random) -> bytes:
    """Lines removed, repeated, exchanged or added, keys renamed, values replaced; sometimes plain bytes."""
    text = data.decode("utf-8", "replace")
    if draw.random() < 0.15:
        return mutate_bytes(data, draw)
    lines = text.split("\n")
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


def _value(draw: random.Random) -> str:
    return draw.choice(_VALUES) if draw.random() < 0.7 else json.dumps(draw.choice(TEXTS))
