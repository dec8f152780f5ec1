"""Edits of ONNX networks that keep them valid: each changes a `Draft`, and `edited` keeps what checks as valid.

An edit knows the type of every tensor, so that what it inserts fits. What the operators further on do not accept is cut
off. Blind mutations of bytes and messages are in `fuzz.mutation`.
"""

from fuzz.edits import attributes, movement, operators, quantised, schemas, tensors, wrapping

EDITS = (
    *operators.EDITS,
    *operators.EDITS,
    *movement.EDITS,
    *movement.EDITS,
    *attributes.EDITS,
    *tensors.EDITS,
    *wrapping.EDITS,
    *wrapping.EDITS,
    *quantised.EDITS,
    *(schemas.EDITS * 8),
)
"""Each edit as often as it is chosen."""
