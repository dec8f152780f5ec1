"""Folding: several operators become one hardware layer (m:n mapping, S3.6).

Affine steps along channels (bias, batch normalisation, factors), one residual addition and one activation move into
the layer that computes their input, if nothing else reads it. Results never change.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable
from dataclasses import replace

from device_agents.emulated_npu.compiler.graph import views
from device_agents.emulated_npu.compiler.graph.constants import FLOATS, ChannelStep, addition_step, linear_step
from device_agents.emulated_npu.compiler.graph.drafts import Builder, Draft
from device_agents.emulated_npu.compiler.graph.hardware_graph import LazyConstant, View
from device_agents.emulated_npu.compiler.graph.layer_parts import channel_axis
from device_agents.emulated_npu.compiler.graph.quantised_layers import CONVERTING
from device_agents.emulated_npu.unit_commands import DataType, Function
from device_agents.emulated_npu.unit_settings import Activation, Binary

_PRODUCTS = frozenset(function for function in Function if function.multiplies)
_WITH_STEPS = _PRODUCTS | {Function.AFFINE}
_WITH_EPILOGUE = frozenset(function for function in Function if function.rule.activates) - {Function.TABLE}
_ALPHA_TAKEN = frozenset({Function.NORMALIZE, Function.LRN})  # their settings need alpha themselves
_WITHOUT_PARAMETERS = frozenset(
    {
        Activation.RELU,
        Activation.SIGMOID,
        Activation.TANH,
        Activation.HARD_SWISH,
        Activation.GELU,
        Activation.GELU_TANH,
        Activation.SOFTPLUS,
        Activation.MISH,
        Activation.ERF,
    }
)


def fold(build: Builder) -> list[Draft]:
    """Return the drafts in topological order after folding."""
    folding = _Folding(build)
    for draft in build.drafts:
        folding.visit(draft)
    return [draft for draft in folding.kept if draft is not None]


class _Folding:
    """One pass over the drafts; `_writers` has the position of the only layer that writes a value."""

    def __init__(self, build: Builder) -> None:
        self._build = build
        self.kept: list[Draft | None] = []
        self._writers: dict[str, int] = {}
        self._readers = Counter(view.value for draft in build.drafts for view in draft.layer.reads)
        self._readers.update(build.homes.keys())  # those lie in another value, and may be read there

    def visit(self, draft: Draft) -> None:
        """Fold the draft into the layer before it, or keep it."""
        folds = (self._fold_step, self._fold_residual, self._fold_activation, self._fold_quantisation)
        if not any(fold(draft) for fold in folds):
            self.kept.append(draft)
            self._note(draft, len(self.kept) - 1)

    def _note(self, draft: Draft, place: int) -> None:
        output = draft.layer.output
        if views.is_whole(output, self._build.values[output.value].shape):
            self._writers[output.value] = place

    def _writer(self, view: View, functions: Iterable[Function]) -> tuple[int, Draft] | None:
        """Return the layer, with its position, that wrote a whole value only for this view, if its function fits."""
        place = self._writers.get(view.value)
        value = self._build.values[view.value]
        if place is None or value.is_output or self._readers[view.value] != 1 or value.dtype not in FLOATS:
            return None
        writer = self.kept[place]
        if writer is None or writer.layer.function not in functions or not views.is_whole(view, value.shape):
            return None
        return (place, writer) if writer.layer.settings.activation == Activation.NONE else None

    def _absorb(self, place: int, writer: Draft, draft: Draft) -> None:
        """Let the layer at that position write the output of the draft."""
        nodes = (*writer.layer.nodes, *draft.layer.nodes)
        writer.layer = replace(writer.layer, output=draft.layer.output, nodes=nodes)
        self._note(writer, place)

    def _fold_step(self, draft: Draft) -> bool:
        source = _affine_source(self._build, draft)
        if source is None or not self._same_type(draft.layer.inputs[source], draft):
            return False
        found = self._writer(draft.layer.inputs[source], _WITH_STEPS)
        if found is None or found[1].layer.residual is not None:
            return False
        place, writer = found
        steps = _steps(self._build, draft, source, channel_axis(writer.layer))
        if steps:
            writer.steps.extend(steps)
            self._absorb(place, writer, draft)
        return bool(steps)

    def _fold_residual(self, draft: Draft) -> bool:
        """Fold the addition into the later of the layers that can take it; that layer moves after the other."""
        if draft.layer.function != Function.BINARY or draft.layer.settings.mode != Binary.ADD:
            return False
        candidates = []
        first, second = draft.layer.inputs
        codes = draft.layer.settings.quantised_first, draft.layer.settings.quantised_second
        for view, other, code in ((first, second, codes[1]), (second, first, codes[0])):
            found = self._writer(view, _PRODUCTS)
            constant = self._build.values[other.value].kind == "constant"
            if found is None or found[1].layer.residual is not None or constant or _repeats(other):
                continue
            if self._same_type(view, draft):
                candidates.append((*found, other, code))
        if not candidates:
            return False
        place, writer, residual, code = max(candidates, key=lambda candidate: candidate[0])
        settings = replace(writer.layer.settings, quantised_third=code)
        writer.layer = replace(writer.layer, residual=residual, settings=settings)
        self.kept[place] = None
        self.kept.append(writer)
        self._absorb(len(self.kept) - 1, writer, draft)
        return True

    def _fold_activation(self, draft: Draft) -> bool:
        if draft.layer.function != Function.MAP or not self._same_type(draft.layer.inputs[0], draft):
            return False
        found = self._writer(draft.layer.inputs[0], _WITH_EPILOGUE)
        if found is None:
            return False
        place, writer = found
        unary = draft.layer.settings
        settings = replace(writer.layer.settings, activation=unary.activation)
        if writer.layer.function not in _ALPHA_TAKEN:
            settings = replace(settings, alpha=unary.alpha, beta=unary.beta)
        elif unary.activation not in _WITHOUT_PARAMETERS:
            return False
        writer.layer = replace(writer.layer, settings=settings)
        self._absorb(place, writer, draft)
        return True

    def _fold_quantisation(self, draft: Draft) -> bool:
        """Fold a conversion to integers into all layers that write what it reads: one, or those of a concatenation."""
        if draft.layer.function != Function.COPY or not draft.layer.settings.quantised_target.scale:
            return False
        (view,) = draft.layer.inputs
        value = self._build.values[view.value]
        home = views.home(view, value.shape, draft.layer.output)
        writers = self._all_writers(value.name)
        if home is None or value.is_output or not writers or not all(map(self._yields, writers)):
            return False
        for writer in writers:
            settings = replace(writer.layer.settings, quantised_target=draft.layer.settings.quantised_target)
            output = views.composed(self._build.resolved(writer.layer.output), home)
            writer.layer = replace(writer.layer, output=output, settings=settings)
        writers[-1].layer = replace(writers[-1].layer, nodes=(*writers[-1].layer.nodes, *draft.layer.nodes))
        return True

    def _all_writers(self, name: str) -> list[Draft]:
        """Return the layers that write a value, or values that lie in it."""
        place = self._writers.get(name)
        drafts = self.kept if place is None else [self.kept[place]]
        return [draft for draft in drafts if draft is not None and name in self._build.surroundings(draft.layer.output)]

    def _yields(self, writer: Draft) -> bool:
        """Return whether a layer can write integers in place of numbers that only one conversion reads."""
        layer = writer.layer
        around = self._build.surroundings(layer.output)
        numbers = self._build.dtype(layer.output) is DataType.FLOAT32 and not layer.settings.quantised_target.scale
        once = all(self._readers[name] == 1 and not self._build.values[name].is_output for name in around)
        return once and numbers and layer.function in CONVERTING

    def _same_type(self, view: View, draft: Draft) -> bool:
        return self._build.dtype(view) == self._build.dtype(draft.layer.output)


def _repeats(view: View) -> bool:
    return any(axis.base is None and axis.size != 1 for axis in view.axes)


def _affine_source(build: Builder, draft: Draft) -> int | None:
    """Return the input of a draft that is an affine function with constant factors; None for other drafts."""
    kind = draft.layer.function, draft.layer.settings.activation
    if kind in ((Function.AFFINE, Activation.NONE), (Function.MAP, Activation.SCALE)):
        return 0
    if kind == (Function.BINARY, Activation.NONE):
        constant = [build.values[view.value].kind == "constant" for view in draft.layer.inputs]
        return None if constant[0] == constant[1] else int(constant[0])
    return None


def _steps(build: Builder, draft: Draft, source: int, axis: int) -> list[ChannelStep]:
    """Return the draft as steps along that axis; an empty list if that is impossible."""
    if draft.layer.function == Function.MAP:
        return [linear_step(draft.layer.settings.alpha, draft.layer.settings.beta)]
    if draft.layer.function == Function.AFFINE:
        return draft.steps if channel_axis(draft.layer) == axis else []
    view = draft.layer.inputs[1 - source]
    constant = build.values[view.value].constant
    if constant is None or not _along(view, axis, constant):
        return []
    step = _binary_step(Binary(draft.layer.settings.mode), constant, constant_first=source == 1)
    return [] if step is None else [step]


def _along(view: View, axis: int, constant: LazyConstant) -> bool:
    """Return whether the view has all of the constant, along that axis or as one number."""
    varying = [place for place, one in enumerate(view.axes) if one.base is not None and one.size != 1]
    if not varying:
        return all(size == 1 for size in constant.shape)
    walked = view.axes[axis]
    whole = walked.step == 1 and not any(view.start)
    return varying == [axis] and whole and math.prod(constant.shape) == walked.size


def _binary_step(mode: Binary, constant: LazyConstant, constant_first: bool) -> ChannelStep | None:
    if mode == Binary.ADD:
        return addition_step(constant)
    if mode == Binary.MULTIPLY:
        return ChannelStep((constant,), lambda scale, shift, c: (scale * c, shift * c))
    if mode == Binary.SUBTRACT and constant_first:
        return ChannelStep((constant,), lambda scale, shift, c: (-scale, c - shift))
    if mode == Binary.SUBTRACT:
        return ChannelStep((constant,), lambda scale, shift, c: (scale, shift - c))
    if mode == Binary.DIVIDE and not constant_first:
        return ChannelStep((constant,), lambda scale, shift, c: (scale / c, shift / c))
    return None
