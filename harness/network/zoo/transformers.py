"""Transformer encoders: a vision transformer (layer norm as one operator) and BERT (layer norm decomposed)."""

import math

import numpy as np
from onnx import ModelProto, TensorProto

from harness.network.zoo.graph_builder import EMBEDDING_SPREAD, Convolution, GraphBuilder

VIT_WIDTH, VIT_DEPTH, VIT_HEADS, VIT_PATCH, VIT_PATCHES = 192, 12, 3, 16, 196
BERT_WIDTH, BERT_DEPTH, BERT_HEADS, BERT_LENGTH = 256, 4, 4, 128
BERT_VOCABULARY, BERT_POSITIONS, BERT_SEGMENTS = 30522, 512, 2
MASKED = -10000.0  # added to the attention scores of padding tokens


def build_vit_tiny(seed: int) -> ModelProto:
    """Build ViT-Tiny/16 at 224x224, 1000 classes: width 192, depth 12, 3 heads, class token.

    Dosovitskiy et al. 2020, "An Image is Worth 16x16 Words" (arXiv 2010.11929), in the tiny size of Touvron et al.
    2020, "Training data-efficient image transformers" (arXiv 2012.12877). Published: 5,717,416 parameters (timm).
    """
    graph = GraphBuilder("vit_tiny", seed)
    image = graph.input("input", (1, 3, 224, 224))
    x = _patch_embedding(graph, image)
    for block in range(VIT_DEPTH):
        name = f"blocks.{block}"
        y = graph.layer_norm(f"{name}.norm1", x, VIT_WIDTH, epsilon=1e-6)
        x = graph.node("Add", f"{name}.add1", x, _vit_attention(graph, f"{name}.attn", y))
        y = graph.layer_norm(f"{name}.norm2", x, VIT_WIDTH, epsilon=1e-6)
        x = graph.node("Add", f"{name}.add2", x, _feed_forward(graph, f"{name}.mlp", y, VIT_WIDTH))
    x = graph.layer_norm("norm", x, VIT_WIDTH, epsilon=1e-6)
    x = graph.gemm("head", _first_token(graph, "pool", x), (VIT_WIDTH, 1000))
    graph.output("logits", x, (1, 1000))
    return graph.model()


def _patch_embedding(graph: GraphBuilder, image: str) -> str:
    projection = Convolution(3, VIT_WIDTH, kernel=VIT_PATCH, stride=VIT_PATCH, pads=(0, 0, 0, 0), bias=True)
    patches = graph.conv("patch_embed", image, projection)
    patches = graph.reshape("patch_embed.flatten", patches, (1, VIT_WIDTH, VIT_PATCHES))
    patches = graph.node("Transpose", "patch_embed.transpose", patches, perm=[0, 2, 1])
    token = graph.normal("cls_token", (1, 1, VIT_WIDTH), spread=EMBEDDING_SPREAD)
    position = graph.normal("pos_embed", (1, VIT_PATCHES + 1, VIT_WIDTH), spread=EMBEDDING_SPREAD)
    return graph.node("Add", "pos_add", graph.node("Concat", "cls_concat", token, patches, axis=1), position)


def _vit_attention(graph: GraphBuilder, name: str, x: str) -> str:
    """Append attention with one projection for query, key and value; the query is scaled before the product."""
    length, depth = VIT_PATCHES + 1, VIT_WIDTH // VIT_HEADS
    x = graph.linear(f"{name}.qkv", x, (VIT_WIDTH, 3 * VIT_WIDTH))
    x = graph.reshape(f"{name}.qkv.reshape", x, (1, length, 3, VIT_HEADS, depth))
    x = graph.node("Transpose", f"{name}.qkv.transpose", x, perm=[2, 0, 3, 1, 4])
    query, key, value = graph.unbind(f"{name}.qkv.unbind", x, parts=3)
    scale = graph.constant(f"{name}.scale", 1 / math.sqrt(depth))
    query = graph.node("Mul", f"{name}.query_scale", query, scale)
    key = graph.node("Transpose", f"{name}.key_transpose", key, perm=[0, 1, 3, 2])
    scores = graph.node("MatMul", f"{name}.scores", query, key)
    weights = graph.node("Softmax", f"{name}.softmax", scores, axis=-1)
    x = _merge_heads(graph, name, graph.node("MatMul", f"{name}.context", weights, value), length, VIT_WIDTH)
    return graph.linear(f"{name}.proj", x, (VIT_WIDTH, VIT_WIDTH))


def build_bert_mini(seed: int) -> ModelProto:
    """Build the BERT-Mini encoder with pooler: 4 layers, width 256, 4 heads, sequence length 128.

    Devlin et al. 2018, "BERT" (arXiv 1810.04805), in the mini size of Turc et al. 2019, "Well-Read Students Learn
    Better" (arXiv 1908.08962). 11,170,560 parameters; the published 11.3 M agree with the pre-training heads counted.
    Inputs: input_ids and attention_mask (int64, 1 = token, 0 = padding); all tokens belong to the first segment.
    """
    graph = GraphBuilder("bert_mini", seed)
    ids = graph.input("input_ids", (1, BERT_LENGTH), TensorProto.INT64)
    mask = graph.input("attention_mask", (1, BERT_LENGTH), TensorProto.INT64)
    bias = _mask_bias(graph, "mask", mask)
    x = _bert_embeddings(graph, "embeddings", ids)
    for layer in range(BERT_DEPTH):
        name = f"encoder.{layer}"
        y = _bert_attention(graph, f"{name}.attention", x, bias)
        y = graph.node("Add", f"{name}.attention.residual", y, x)
        x = graph.layer_norm_decomposed(f"{name}.attention.norm", y, BERT_WIDTH, epsilon=1e-12)
        y = graph.node("Add", f"{name}.mlp.residual", _feed_forward(graph, f"{name}.mlp", x, BERT_WIDTH), x)
        x = graph.layer_norm_decomposed(f"{name}.mlp.norm", y, BERT_WIDTH, epsilon=1e-12)
    pooled = graph.gemm("pooler", _first_token(graph, "pooler.first", x), (BERT_WIDTH, BERT_WIDTH))
    graph.output("last_hidden_state", x, (1, BERT_LENGTH, BERT_WIDTH))
    graph.output("pooler_output", graph.node("Tanh", "pooler.tanh", pooled), (1, BERT_WIDTH))
    return graph.model()


def _bert_embeddings(graph: GraphBuilder, name: str, ids: str) -> str:
    """Append the sum of token, segment and position embeddings, normalised."""
    zeros = graph.constant(f"{name}.token_type_ids", np.zeros((1, BERT_LENGTH), dtype=np.int64))
    positions = graph.constant(f"{name}.position_ids", np.arange(BERT_LENGTH, dtype=np.int64)[np.newaxis])

    def embedded(kind: str, rows: int, picked: str) -> str:
        table = graph.normal(f"{name}.{kind}.weight", (rows, BERT_WIDTH), spread=EMBEDDING_SPREAD)
        return graph.node("Gather", f"{name}.{kind}", table, picked, axis=0)

    word = embedded("word", BERT_VOCABULARY, ids)
    token_type = embedded("token_type", BERT_SEGMENTS, zeros)
    position = embedded("position", BERT_POSITIONS, positions)
    x = graph.node("Add", f"{name}.add1", word, token_type)
    x = graph.node("Add", f"{name}.add2", x, position)
    return graph.layer_norm_decomposed(f"{name}.norm", x, BERT_WIDTH, epsilon=1e-12)


def _mask_bias(graph: GraphBuilder, name: str, mask: str) -> str:
    """Append (1 - mask) * MASKED, in a shape that broadcasts over heads and queries."""
    for axis in (1, 2):
        axes = graph.constant(f"{name}.unsqueeze_{axis}.axes", [axis])
        mask = graph.node("Unsqueeze", f"{name}.unsqueeze_{axis}", mask, axes)
    mask = graph.node("Cast", f"{name}.cast", mask, to=TensorProto.FLOAT)
    absent = graph.node("Sub", f"{name}.sub", graph.constant(f"{name}.one", 1.0), mask)
    return graph.node("Mul", f"{name}.mul", absent, graph.constant(f"{name}.masked", MASKED))


def _bert_attention(graph: GraphBuilder, name: str, x: str, bias: str) -> str:
    """Append attention with separate projections for query, key and value; the scores are scaled after the product."""
    depth = BERT_WIDTH // BERT_HEADS
    perms = {"query": [0, 2, 1, 3], "key": [0, 2, 3, 1], "value": [0, 2, 1, 3]}
    heads = {}
    for kind, perm in perms.items():
        y = graph.linear(f"{name}.{kind}", x, (BERT_WIDTH, BERT_WIDTH))
        y = graph.reshape(f"{name}.{kind}.reshape", y, (1, BERT_LENGTH, BERT_HEADS, depth))
        heads[kind] = graph.node("Transpose", f"{name}.{kind}.transpose", y, perm=perm)
    scores = graph.node("MatMul", f"{name}.scores", heads["query"], heads["key"])
    scores = graph.node("Div", f"{name}.scale", scores, graph.constant(f"{name}.root_depth", math.sqrt(depth)))
    scores = graph.node("Add", f"{name}.mask_add", scores, bias)
    weights = graph.node("Softmax", f"{name}.softmax", scores, axis=-1)
    context = graph.node("MatMul", f"{name}.context", weights, heads["value"])
    x = _merge_heads(graph, name, context, BERT_LENGTH, BERT_WIDTH)
    return graph.linear(f"{name}.output", x, (BERT_WIDTH, BERT_WIDTH))


def _feed_forward(graph: GraphBuilder, name: str, x: str, width: int) -> str:
    hidden = graph.gelu(f"{name}.gelu", graph.linear(f"{name}.fc1", x, (width, 4 * width)))
    return graph.linear(f"{name}.fc2", hidden, (4 * width, width))


def _merge_heads(graph: GraphBuilder, name: str, x: str, length: int, width: int) -> str:
    x = graph.node("Transpose", f"{name}.merge.transpose", x, perm=[0, 2, 1, 3])
    return graph.reshape(f"{name}.merge.reshape", x, (1, length, width))


def _first_token(graph: GraphBuilder, name: str, x: str) -> str:
    return graph.node("Gather", name, x, graph.constant(f"{name}.index", 0), axis=1)
