"""The protobuf messages of a model and their fields, without values of tensors."""

import functools
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import Message


def messages(roots: Iterable[Message]) -> Iterator[Message]:
    """Yield protobuf messages and all messages inside them."""
    waiting = list(roots)
    while waiting:
        yield (message := waiting.pop())
        for field, value in fields(message):
            if field.type == field.TYPE_MESSAGE:
                waiting += value if field.is_repeated else (value,)


def fields(message: Message) -> Sequence[tuple[FieldDescriptor, Any]]:
    """Return the fields of a message that are set, of a tensor those without its values: to read these copies them."""
    if message.DESCRIPTOR.name != "TensorProto":
        return list(message.ListFields())
    return [(field, getattr(message, field.name)) for field in _plain_fields(message.DESCRIPTOR)]


@functools.cache
def _plain_fields(descriptor: Descriptor) -> list[FieldDescriptor]:
    return [field for field in descriptor.fields if field.type in (field.TYPE_STRING, field.TYPE_MESSAGE)]
