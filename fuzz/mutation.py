"""Mutations of bytes, text, JSON values and protobuf messages, drawn from a `random.Random`."""

import copy
import json
import random
import re
from collections.abc import MutableSequence
from typing import Any

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message

INTEGERS = (0, 1, -1, 2, 7, 255, 1 << 16, (1 << 31) - 1, 1 << 31, 1 << 40, (1 << 63) - 1, -(1 << 63), 1 << 63, 1 << 200)
NUMBERS = (0.0, -0.0, 1.0, -1.0, 0.5, 1e-320, 1e300, -1e300, 1e-9)
_PATHS = ("../../evil", "/etc/passwd", "C:\\evil", "~nobody-here/x", "..", ".")
_CHARACTERS = ("\x1b[31m", "a\nb", "a\rb", "\x00", "\u202e", "\ud7ff", "\U0001f600", "\ufeff")
TEXTS = ("", "a", "x" * 5000, "=1+1", "<script>", "NaN", "1e400", "-", "--help", *_PATHS, *_CHARACTERS)
RAW_NUMBERS = ("NaN", "-Infinity", "1e400", "-1e400", "1" * 5000, "0.1e-999", "1E+2", "true", '"\\ud800"', "-0")
TOKENS = (b"\x00", b"\xff", b"\xef\xbb\xbf", b"\r\n", b'"', b"'", b"\\", b",", b"[" * 2000, b"{" * 2000, b"\xed\xa0")
_NUMBER = re.compile(r"(?<=[:,\[ ])-?\d+(\.\d+)?([eE][-+]?\d+)?(?=[,\]} ])")


def mutate_bytes(data: bytes, draw: random.Random) -> bytes:
    """Change, remove, repeat or insert a few bytes."""
    content = bytearray(data)
    for _ in range(draw.choice((1, 1, 2, 4))):
        at = draw.randrange(len(content) + 1)
        end = min(len(content), at + draw.choice((1, 1, 2, 4, 16, 200)))
        kind = draw.randrange(5)
        if kind == 0 and at < len(content):
            content[at] ^= 1 << draw.randrange(8)
        elif kind == 1 and at < len(content):
            content[at] = draw.randrange(256)
        elif kind == 2:
            del content[at:end]
        elif kind == 3:
            content[at:at] = content[at:end] * draw.choice((1, 2, 50))
        else:
            content[at:at] = draw.choice(TOKENS)
    return bytes(content)


def any_value(draw: random.Random) -> Any:
    """Return a JSON value that readers tend not to expect."""
    kind = draw.randrange(6)
    if kind == 0:
        return draw.choice(INTEGERS)
    if kind == 1:
        return draw.choice(NUMBERS)
    if kind == 2:
        return draw.choice(TEXTS)
    if kind == 3:
        return draw.choice((None, True, False))
    if kind == 4:
        return draw.choice(([], {}, [[]], {"": 0}, [0] * 300))
    value: Any = 1
    for _ in range(draw.choice((5, 300))):
        value = [value] if draw.random() < 0.5 else {"a": value}
    return value


def mutate_json(value: Any, draw: random.Random) -> Any:
    """Return a copy with one value replaced, removed, renamed, repeated or changed slightly."""
    value = copy.deepcopy(value)
    holder, key = _place(value, draw)
    if holder is None:
        return any_value(draw)
    kind = draw.randrange(7)
    if kind == 0:
        del holder[key]
    elif kind == 1 and isinstance(holder, dict):
        name = draw.choice((draw.choice(TEXTS), str(draw.choice(list(holder)))))
        holder[name] = holder.pop(key)
    elif kind == 2 and isinstance(holder, list):
        holder[key:key] = [copy.deepcopy(holder[key])] * draw.choice((1, 3, 300))
    elif kind == 3 and type(holder[key]) in (int, float):
        holder[key] = holder[key] * draw.choice((-1, 2, 1e9, 0)) + draw.choice((0, 1, -1))
    elif kind == 4 and isinstance(holder[key], str):
        holder[key] = mutate_text(holder[key], draw)
    else:
        holder[key] = any_value(draw)
    return value


def _place(value: Any, draw: random.Random) -> tuple[Any, Any]:
    """Return a random container below `value` and a key in it; (None, None) if there is none."""
    holder, key = None, None
    while isinstance(value, (dict, list)) and value:
        holder, key = value, draw.choice(list(value)) if isinstance(value, dict) else draw.randrange(len(value))
        value = holder[key]
        if draw.random() < 0.25:
            break
    return holder, key


def json_text(value: Any, draw: random.Random) -> bytes:
    """Return JSON, sometimes with a number that strict readers refuse."""
    text = json.dumps(value)
    if draw.random() < 0.1:
        numbers = list(_NUMBER.finditer(text))
        if numbers:
            found = draw.choice(numbers)
            text = text[: found.start()] + draw.choice(RAW_NUMBERS) + text[found.end() :]
    return text.encode("utf-8", "surrogatepass")


def mutate_text(text: str, draw: random.Random) -> str:
    """Return the text with a part replaced, removed or repeated, or another text."""
    if not text or draw.random() < 0.3:
        return draw.choice(TEXTS)
    at = draw.randrange(len(text))
    end = min(len(text), at + draw.choice((1, 3, 40)))
    middle = draw.choice((draw.choice(TEXTS), "", text[at:end] * draw.choice((2, 100))))
    return text[:at] + middle + text[end:]


def mutate_message(root: Message, draw: random.Random) -> None:
    """Change one field somewhere in a message, in place."""
    messages = _messages(root)
    message = draw.choice(messages)
    fields = [field for field, _ in message.ListFields()]
    field = draw.choice(fields) if fields and draw.random() < 0.85 else draw.choice(message.DESCRIPTOR.fields)
    if field.is_repeated:
        _mutate_repeated(getattr(message, field.name), field, messages, draw)
    elif field.message_type is not None:
        others = [other for other in messages if other.DESCRIPTOR is field.message_type]
        if others and draw.random() < 0.6:
            getattr(message, field.name).CopyFrom(_copied(draw.choice(others)))
        else:
            message.ClearField(field.name)
    elif draw.random() < 0.1:
        message.ClearField(field.name)
    else:
        setattr(message, field.name, _scalar(field, getattr(message, field.name), messages, draw))


def _messages(root: Message) -> list[Message]:
    found, waiting = [root], [root]
    while waiting and len(found) < 5000:
        for field, value in waiting.pop().ListFields():
            if field.message_type is not None:
                below = list(value) if field.is_repeated else [value]
                found += below
                waiting += below
    return found


def _mutate_repeated(
    items: MutableSequence[Any], field: FieldDescriptor, messages: list[Message], draw: random.Random
) -> None:
    kind = draw.randrange(5)
    at = draw.randrange(len(items)) if items else 0
    if kind == 0 and items:
        del items[at]
    elif kind == 1 and len(items) > 1:
        other = draw.randrange(len(items))
        if field.message_type is None:
            items[at], items[other] = items[other], items[at]
        else:
            first = _copied(items[at])
            items[at].CopyFrom(items[other])
            items[other].CopyFrom(first)
    elif field.message_type is not None:
        others = [other for other in messages if other.DESCRIPTOR is field.message_type]
        if others:
            items.append(_copied(draw.choice(others)))
        else:
            items.add()  # type: ignore[attr-defined]
    elif kind == 2 or not items:
        items.append(_scalar(field, _first(items), messages, draw))
    else:
        items[at] = _scalar(field, items[at], messages, draw)


def _first(items: MutableSequence[Any]) -> Any:
    return items[0] if items else None


def _copied(message: Message) -> Message:
    copied = type(message)()
    copied.CopyFrom(message)
    return copied


def _scalar(field: FieldDescriptor, value: Any, messages: list[Message], draw: random.Random) -> Any:
    if field.cpp_type in (FieldDescriptor.CPPTYPE_FLOAT, FieldDescriptor.CPPTYPE_DOUBLE):
        return draw.choice((*NUMBERS, float("inf"), float("nan")))
    if field.cpp_type == FieldDescriptor.CPPTYPE_ENUM:
        return draw.choice([one.number for one in field.enum_type.values])
    if field.cpp_type != FieldDescriptor.CPPTYPE_STRING:
        return _integer(field, value, draw)
    if field.type == FieldDescriptor.TYPE_BYTES:
        return mutate_bytes(value or b"", draw)
    known = [text for other in messages for text in _texts(other)]
    if known and draw.random() < 0.7:
        return draw.choice(known)
    return mutate_text(value if isinstance(value, str) else "", draw)  # damaged text is read as bytes


def _integer(field: FieldDescriptor, value: Any, draw: random.Random) -> int:
    bits = 31 if field.cpp_type in (FieldDescriptor.CPPTYPE_INT32, FieldDescriptor.CPPTYPE_UINT32) else 63
    low = 0 if field.cpp_type in (FieldDescriptor.CPPTYPE_UINT32, FieldDescriptor.CPPTYPE_UINT64) else -(1 << bits)
    if draw.random() < 0.5:
        wanted = int(value or 0) + draw.choice((-2, -1, 1, 2, 16))
    else:
        wanted = draw.choice((*range(24), *INTEGERS))
    return max(low, min((1 << bits) - 1, wanted))


def _texts(message: Message) -> list[str]:
    texts: list[str] = []
    for field, value in message.ListFields():
        if field.type == FieldDescriptor.TYPE_STRING:
            texts += [text for text in (value if field.is_repeated else [value]) if isinstance(text, str)]
    return texts
