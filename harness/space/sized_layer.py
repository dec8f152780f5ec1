"""What all layers of a space have: the shapes of their tensors, and the sizes that follow from these."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod

Shape = tuple[int, ...]
FLOAT_BYTES = 4


class SizedLayer(ABC):
    """A single layer with all its sizes."""

    @property
    @abstractmethod
    def inputs(self) -> list[Shape]:
        """Return the shapes of the inputs."""

    @property
    @abstractmethod
    def result(self) -> Shape:
        """Return the shape of the result, the first one of several."""

    @property
    def results(self) -> list[Shape]:
        """Return the shapes of all results."""
        return [self.result]

    @property
    def weights(self) -> list[Shape]:
        """Return the shapes of the weights that are multiplied."""
        return []

    @property
    def macs(self) -> int:
        """Return the multiply-adds including padding; without weights, the elements of the largest tensor."""
        return max(math.prod(shape) for shape in (*self.inputs, *self.results))

    @property
    def bytes(self) -> int:
        """Return the bytes of inputs, weights and results."""
        return FLOAT_BYTES * sum(math.prod(shape) for shape in (*self.inputs, *self.weights, *self.results))
