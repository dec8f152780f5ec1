"""Transformers and mixers of images, text and sounds."""

import math
from typing import Final, NamedTuple

import numpy as np
from onnx import ModelProto, TensorProto

from benchmarks.topologies.layers import IMAGENET_CLASSES, Topology
from harness.network.zoo.graph_builder import EMBEDDING_SPREAD

PATCH, PATCHES = 16, 196
DEIT_WIDTH, DEIT_DEPTH, DEIT_HEADS = 192, 12, 3
MIXER_WIDTH, MIXER_DEPTH, MIXER_TOKEN_WIDTH = 512, 8, 256
BERT_WIDTH, BERT_DEPTH, BERT_HEADS, BERT_LENGTH, BERT_WORDS, BERT_POSITIONS = 128, 2, 2, 128, 30522, 512
WHISPER_WIDTH, WHISPER_DEPTH, WHISPER_HEADS, WHISPER_BINS, WHISPER_FRAMES = 384, 4, 6, 80, 500
SEGFORMER_IMAGE, SEGFORMER_WIDTH, SEGFORMER_CLASSES = 128, 256, 150


class SegformerStage(NamedTuple):
    """A stage of SegFormer: kernel and stride of its patches, width, heads, and how far keys are reduced."""

    kernel: int
    stride: int
    width: int
    heads: int
    reduction: int


SEGFORMER_B0: Final = (
    SegformerStage(7, 4, 32, 1, 8),
    SegformerStage(3, 2, 64, 2, 4),
    SegformerStage(3, 2, 160, 5, 2),
    SegformerStage(3, 2, 256, 8, 1),
)
SEGFORMER_DEPTH: Final = 2


class Sequence(NamedTuple):
    """A sequence of `length` vectors of `width` numbers."""

    tensor: str
    length: int
    width: int


def build_deit_tiny(seed: int) -> ModelProto:
    """Build DeiT-Tiny with distillation at 224x224, 1000 classes: two tokens, two heads, layer norm decomposed.

    Touvron et al. 2020, "Training data-efficient image transformers and distillation through attention"
    (arXiv 2012.12877). Published: 5,910,800 parameters, 1.3 G multiply-adds.
    """
    net = Topology("deit_tiny", seed, opset=13)
    length = PATCHES + 2
    tokens = [net.normal(name, (1, 1, DEIT_WIDTH), spread=EMBEDDING_SPREAD) for name in ("cls_token", "dist_token")]
    x = net.op("Concat", *tokens, _patches(net, DEIT_WIDTH), axis=1)
    x = net.add(x, net.normal("pos_embed", (1, length, DEIT_WIDTH), spread=EMBEDDING_SPREAD))
    for _ in range(DEIT_DEPTH):
        y = _attention(net, Sequence(_old_norm(net, x, DEIT_WIDTH), length, DEIT_WIDTH), DEIT_HEADS)
        x = net.add(x, y)
        x = net.add(x, _feed_forward(net, _old_norm(net, x, DEIT_WIDTH), DEIT_WIDTH, 4 * DEIT_WIDTH))
    x = _old_norm(net, x, DEIT_WIDTH)
    heads = []
    for token in range(2):
        first = net.sized(net.op("Gather", x, net.value(token), axis=1), DEIT_WIDTH)
        heads.append(net.dense(first, IMAGENET_CLASSES))
    return net.finished(net.op("Div", net.add(*heads), net.value(2.0)), IMAGENET_CLASSES)


def _patches(net: Topology, width: int) -> str:
    """Append the image and its patches, as a sequence."""
    x = net.convolve(net.image(3, 224, 224), width, PATCH, PATCH, pads=(0, 0, 0, 0))
    return net.transposed(net.reshaped(x, 1, width, PATCHES), 0, 2, 1)


def _norm(net: Topology, x: str, width: int, epsilon: float = 1e-6) -> str:
    return net.layer_norm(net.label("LayerNormalization"), x, width, epsilon)


def _old_norm(net: Topology, x: str, width: int) -> str:
    return net.layer_norm_decomposed(net.label("LayerNorm"), x, width, epsilon=1e-6)


def _linear(net: Topology, x: str, inputs: int, outputs: int) -> str:
    return net.linear(net.label("MatMul"), x, (inputs, outputs))


def _feed_forward(net: Topology, x: str, width: int, hidden: int) -> str:
    return _linear(net, net.gelu(net.label("Gelu"), _linear(net, x, width, hidden)), hidden, width)


def _attention(
    net: Topology, x: Sequence, heads: int, source: Sequence | None = None, key_bias: bool = True, mask: str = ""
) -> str:
    """Append attention of `x` to `source` (or to itself), its heads merged and projected."""
    source = source or x
    query = _heads(net, x, heads, (0, 2, 1, 3))
    key = _heads(net, source, heads, (0, 2, 3, 1), key_bias)
    value = _heads(net, source, heads, (0, 2, 1, 3))
    scores = net.op("MatMul", query, key)
    scores = net.op("Div", scores, net.value(math.sqrt(x.width // heads)))
    if mask:
        scores = net.add(scores, mask)
    context = net.op("MatMul", net.op("Softmax", scores, axis=-1), value)
    merged = net.reshape(net.label("Reshape"), net.transposed(context, 0, 2, 1, 3), (1, x.length, x.width))
    return _linear(net, merged, x.width, x.width)


def _heads(net: Topology, x: Sequence, heads: int, perm: tuple[int, ...], bias: bool = True) -> str:
    if bias:
        y = _linear(net, x.tensor, x.width, x.width)
    else:
        weight = net.he_normal(net.label("weight"), (x.width, x.width), fan_in=x.width)
        y = net.op("MatMul", x.tensor, weight)
    y = net.reshape(net.label("Reshape"), y, (1, x.length, heads, x.width // heads))
    return net.transposed(y, *perm)


def build_mixer_s16(seed: int) -> ModelProto:
    """Build MLP-Mixer-S/16 at 224x224, 1000 classes: linear layers over patches and over channels in turn.

    Tolstikhin et al. 2021, "MLP-Mixer: An all-MLP Architecture for Vision" (arXiv 2105.01601).
    Published: 18,528,264 parameters (timm; the paper says 18 M), 3.8 G multiply-adds.
    """
    net = Topology("mixer_s16", seed)
    x = _patches(net, MIXER_WIDTH)
    for _ in range(MIXER_DEPTH):
        y = net.transposed(_norm(net, x, MIXER_WIDTH), 0, 2, 1)
        x = net.add(x, net.transposed(_feed_forward(net, y, PATCHES, MIXER_TOKEN_WIDTH), 0, 2, 1))
        x = net.add(x, _feed_forward(net, _norm(net, x, MIXER_WIDTH), MIXER_WIDTH, 4 * MIXER_WIDTH))
    x = net.op("ReduceMean", _norm(net, x, MIXER_WIDTH), axes=[1], keepdims=0)
    return net.classified(net.sized(x, MIXER_WIDTH))


def build_bert_tiny(seed: int) -> ModelProto:
    """Build the BERT-Tiny encoder with pooler: 2 layers, width 128, 2 heads, 128 tokens, layer norm as one operator.

    Devlin et al. 2018, "BERT" (arXiv 1810.04805), in the tiny size of Turc et al. 2019, "Well-Read Students Learn
    Better" (arXiv 1908.08962). Published: 4,385,920 parameters. Inputs: input_ids, attention_mask and token_type_ids.
    """
    net = Topology("bert_tiny", seed)
    names = ("input_ids", "attention_mask", "token_type_ids")
    ids, mask, segments = (net.input(name, (1, BERT_LENGTH), TensorProto.INT64) for name in names)
    mask = net.op("Cast", net.op("Unsqueeze", mask, net.value([1, 2])), to=TensorProto.FLOAT)
    mask = net.mul(net.op("Sub", net.value(1.0), mask), net.value(float(np.finfo(np.float32).min)))
    positions = net.value(range(BERT_LENGTH))
    x = ""
    for name, rows, picked in (
        ("word", BERT_WORDS, ids),
        ("type", 2, segments),
        ("position", BERT_POSITIONS, positions),
    ):
        table = net.normal(f"{name}.weight", (rows, BERT_WIDTH), spread=EMBEDDING_SPREAD)
        embedding = net.op("Gather", table, picked, axis=0)
        x = net.add(x, embedding) if x else embedding
    x = _norm(net, x, BERT_WIDTH, 1e-12)
    for _ in range(BERT_DEPTH):
        y = _attention(net, Sequence(x, BERT_LENGTH, BERT_WIDTH), BERT_HEADS, mask=mask)
        x = _norm(net, net.add(y, x), BERT_WIDTH, 1e-12)
        x = _norm(net, net.add(_feed_forward(net, x, BERT_WIDTH, 4 * BERT_WIDTH), x), BERT_WIDTH, 1e-12)
    first = net.sized(net.op("Gather", x, net.value(0), axis=1), BERT_WIDTH)
    net.output("last_hidden_state", x, (1, BERT_LENGTH, BERT_WIDTH))
    net.output("pooler_output", net.dense(first, BERT_WIDTH, "tanh"), (1, BERT_WIDTH))
    return net.model()


def build_whisper_tiny(seed: int) -> ModelProto:
    """Build the encoder of Whisper-tiny for 500 frames of 80 frequencies, 5 seconds where the published has 30.

    Radford et al. 2022, "Robust Speech Recognition via Large-Scale Weak Supervision" (arXiv 2212.04356): 4 layers,
    width 384, 6 heads, keys without bias.
    """
    net = Topology("whisper_tiny", seed)
    width, length = WHISPER_WIDTH, WHISPER_FRAMES // 2
    x = net.activate(net.convolve(net.image(WHISPER_BINS, WHISPER_FRAMES), width, (3,)), "gelu")
    x = net.activate(net.convolve(x, width, (3,), 2), "gelu")
    x = net.add(net.transposed(x, 0, 2, 1), net.normal("positions", (length, width), spread=EMBEDDING_SPREAD))
    for _ in range(WHISPER_DEPTH):
        x = net.add(x, _attention(net, Sequence(_norm(net, x, width), length, width), WHISPER_HEADS, key_bias=False))
        x = net.add(x, _feed_forward(net, _norm(net, x, width), width, 4 * width))
    return net.finished(_norm(net, x, width), length, width)


def build_segformer_b0(seed: int) -> ModelProto:
    """Build SegFormer-B0 at 128x128, 150 classes: attention to keys at a lower resolution, and four resolutions joined.

    Xie et al. 2021, "SegFormer: Simple and Efficient Design for Semantic Segmentation with Transformers"
    (arXiv 2105.15203). Published: 3.8 M parameters.
    """
    net = Topology("segformer_b0", seed, fold=False)
    x = net.image(3, SEGFORMER_IMAGE, SEGFORMER_IMAGE)
    size = SEGFORMER_IMAGE
    features = []
    for stage in SEGFORMER_B0:
        size //= stage.stride
        x = net.convolve(x, stage.width, stage.kernel, stage.stride, pads=(stage.kernel // 2,) * 4)
        x = _norm(net, _sequence(net, x, size), stage.width)
        for _ in range(SEGFORMER_DEPTH):
            x = _segformer_block(net, x, stage, size)
        x = _norm(net, x, stage.width)
        x = _grid(net, x, stage.width, size)
        features.append((x, size))
    joined = []
    largest = features[0][1]
    for x, size in reversed(features):
        y = _linear(net, _sequence(net, x, size), net.channels(x), SEGFORMER_WIDTH)
        y = _grid(net, y, SEGFORMER_WIDTH, size)
        joined.append(y if size == largest else net.upsampled(y, largest / size, "linear"))
    x = net.convolve(net.unit(net.concat(*joined), SEGFORMER_WIDTH), SEGFORMER_CLASSES)
    return net.finished(x, SEGFORMER_CLASSES, largest, largest)


def _sequence(net: Topology, x: str, size: int) -> str:
    return net.transposed(net.reshaped(x, 1, net.channels(x), size * size), 0, 2, 1)


def _grid(net: Topology, x: str, width: int, size: int) -> str:
    return net.reshaped(net.transposed(x, 0, 2, 1), 1, width, size, size)


def _segformer_block(net: Topology, x: str, stage: SegformerStage, size: int) -> str:
    width, reduction = stage.width, stage.reduction
    whole = Sequence(_norm(net, x, width), size * size, width)
    source = whole
    if reduction > 1:
        y = net.convolve(_grid(net, whole.tensor, width, size), width, reduction, reduction, pads=(0, 0, 0, 0))
        reduced = size // reduction
        source = Sequence(_norm(net, _sequence(net, y, reduced), width), reduced * reduced, width)
    x = net.add(x, _attention(net, whole, stage.heads, source))
    hidden = 4 * width
    y = _grid(net, _linear(net, _norm(net, x, width), width, hidden), hidden, size)
    y = net.convolve(y, hidden, 3, groups=hidden)
    y = net.gelu(net.label("Gelu"), _sequence(net, y, size))
    return net.add(x, _linear(net, y, hidden, width))
