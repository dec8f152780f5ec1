"""Classifiers for mobile devices: depthwise convolutions, inverted residuals and their descendants."""

from typing import Final, NamedTuple

from onnx import ModelProto

from benchmarks.topologies.layers import Act, Topology, rounded

MOBILENETV1_BLOCKS: Final = (
    (64, 1),
    (128, 2),
    (128, 1),
    (256, 2),
    (256, 1),
    (512, 2),
    *((512, 1),) * 5,
    (1024, 2),
    (1024, 1),
)
SHUFFLENETV2_STAGES: Final = ((116, 4), (232, 8), (464, 4))
PP_LCNET_BLOCKS: Final = (
    (3, 32, 1, False),
    (3, 64, 2, False),
    (3, 64, 1, False),
    (3, 128, 2, False),
    (3, 128, 1, False),
    (3, 256, 2, False),
    *((5, 256, 1, False),) * 5,
    (5, 512, 2, True),
    (5, 512, 1, True),
)
SQUEEZENEXT_STAGES: Final = ((32, 6), (64, 6), (128, 8), (256, 1))


class Block(NamedTuple):
    """An inverted residual: kernel, hidden and outgoing channels, stride, channels of its squeeze, activation."""

    kernel: int
    hidden: int
    channels: int
    stride: int
    squeezed: int
    act: Act


class Row(NamedTuple):
    """Repeated inverted residuals: kernel, expansion, channels, stride of the first, and how many."""

    kernel: int
    expansion: int
    channels: int
    stride: int
    repeats: int
    squeezed: bool = False


# Kernel, hidden and outgoing channels, squeeze-and-excitation or not, hard swish or relu, stride.
MOBILENETV3_LARGE: Final = (
    (3, 16, 16, 0, 0, 1),
    (3, 64, 24, 0, 0, 2),
    (3, 72, 24, 0, 0, 1),
    (5, 72, 40, 1, 0, 2),
    (5, 120, 40, 1, 0, 1),
    (5, 120, 40, 1, 0, 1),
    (3, 240, 80, 0, 1, 2),
    (3, 200, 80, 0, 1, 1),
    (3, 184, 80, 0, 1, 1),
    (3, 184, 80, 0, 1, 1),
    (3, 480, 112, 1, 1, 1),
    (3, 672, 112, 1, 1, 1),
    (5, 672, 160, 1, 1, 2),
    (5, 960, 160, 1, 1, 1),
    (5, 960, 160, 1, 1, 1),
)
MOBILENETV3_SMALL: Final = (
    (3, 16, 16, 1, 0, 2),
    (3, 72, 24, 0, 0, 2),
    (3, 88, 24, 0, 0, 1),
    (5, 96, 40, 1, 1, 2),
    (5, 240, 40, 1, 1, 1),
    (5, 240, 40, 1, 1, 1),
    (5, 120, 48, 1, 1, 1),
    (5, 144, 48, 1, 1, 1),
    (5, 288, 96, 1, 1, 2),
    (5, 576, 96, 1, 1, 1),
    (5, 576, 96, 1, 1, 1),
)
MNASNET_A1: Final = (
    Row(3, 6, 24, 2, 2),
    Row(5, 3, 40, 2, 3, True),
    Row(3, 6, 80, 2, 4),
    Row(3, 6, 112, 1, 2, True),
    Row(5, 6, 160, 2, 3, True),
    Row(3, 6, 320, 1, 1),
)
EFFICIENTNET_LITE0: Final = (
    Row(3, 1, 16, 1, 1),
    Row(3, 6, 24, 2, 2),
    Row(5, 6, 40, 2, 2),
    Row(3, 6, 80, 2, 3),
    Row(5, 6, 112, 1, 3),
    Row(5, 6, 192, 2, 4),
    Row(3, 6, 320, 1, 1),
)
# Kernel, hidden and outgoing channels, squeeze-and-excitation or not, stride.
GHOSTNET: Final = (
    (3, 16, 16, 0, 1),
    (3, 48, 24, 0, 2),
    (3, 72, 24, 0, 1),
    (5, 72, 40, 1, 2),
    (5, 120, 40, 1, 1),
    (3, 240, 80, 0, 2),
    (3, 200, 80, 0, 1),
    (3, 184, 80, 0, 1),
    (3, 184, 80, 0, 1),
    (3, 480, 112, 1, 1),
    (3, 672, 112, 1, 1),
    (5, 672, 160, 1, 2),
    (5, 960, 160, 0, 1),
    (5, 960, 160, 1, 1),
    (5, 960, 160, 0, 1),
    (5, 960, 160, 1, 1),
)


def build_mobilenetv1(seed: int) -> ModelProto:
    """Build MobileNetV1 1.0 at 224x224, 1000 classes, with batch norms as operators.

    Howard et al. 2017, "MobileNets: Efficient Convolutional Neural Networks for Mobile Vision Applications"
    (arXiv 1704.04861). Published: 4,231,976 parameters, 569 M multiply-adds.
    """
    net = Topology("mobilenetv1", seed, opset=14, fold=False)
    x = net.unit(net.image(3, 224, 224), 32, 3, 2)
    for channels, stride in MOBILENETV1_BLOCKS:
        x = net.unit(net.depthwise(x, 3, stride), channels)
    return net.classified(net.pooled(x))


def build_mobilenetv3_large(seed: int) -> ModelProto:
    """Build MobileNetV3-Large at 224x224, 1000 classes, with hard swish as one operator.

    Howard et al. 2019, "Searching for MobileNetV3" (arXiv 1905.02244).
    Published: 5,483,032 parameters before folding (torchvision; the paper says 5.4 M), 219 M multiply-adds.
    """
    return _mobilenetv3(Topology("mobilenetv3_large", seed, opset=14), MOBILENETV3_LARGE, 1280, "hard_swish")


def build_mobilenetv3_small(seed: int) -> ModelProto:
    """Build MobileNetV3-Small at 224x224, 1000 classes, with hard swish as HardSigmoid and Mul.

    Howard et al. 2019, "Searching for MobileNetV3" (arXiv 1905.02244).
    Published: 2,542,856 parameters before folding (torchvision; the paper says 2.5 M), 56 M multiply-adds.
    """
    return _mobilenetv3(Topology("mobilenetv3_small", seed, opset=13), MOBILENETV3_SMALL, 1024, "hard_swish_gated")


def _mobilenetv3(
    net: Topology, rows: tuple[tuple[int, int, int, int, int, int], ...], features: int, swish: Act
) -> ModelProto:
    x = net.unit(net.image(3, 224, 224), 16, 3, 2, swish)
    for kernel, hidden, channels, squeezes, swishes, stride in rows:
        squeezed = rounded(hidden / 4) if squeezes else 0
        x = _residual(net, x, Block(kernel, hidden, channels, stride, squeezed, swish if swishes else "relu"))
    x = net.pooled(net.unit(x, 6 * net.channels(x), act=swish))
    return net.classified(net.dense(x, features, swish))


def _residual(net: Topology, x: str, block: Block, gate: Act = "hard_sigmoid") -> str:
    """Append an inverted residual."""
    y = x if block.hidden == net.channels(x) else net.unit(x, block.hidden, act=block.act)
    y = net.depthwise(y, block.kernel, block.stride, block.act)
    if block.squeezed:
        y = net.squeeze_excite(y, block.squeezed, gate=gate)
    y = net.unit(y, block.channels, act="none")
    return net.add(x, y) if block.stride == 1 and block.channels == net.channels(x) else y


def _residuals(net: Topology, x: str, rows: tuple[Row, ...], act: Act) -> str:
    """Append the inverted residuals of a table."""
    for row in rows:
        for repeat in range(row.repeats):
            inside = net.channels(x)
            squeezed = inside // 4 if row.squeezed else 0
            stride = row.stride if repeat == 0 else 1
            block = Block(row.kernel, row.expansion * inside, row.channels, stride, squeezed, act)
            x = _residual(net, x, block, gate="sigmoid")
    return x


def build_mnasnet_a1(seed: int) -> ModelProto:
    """Build MnasNet-A1 at 224x224, 1000 classes: kernels of 3 and 5, squeeze-and-excitation in some blocks.

    Tan et al. 2018, "MnasNet: Platform-Aware Neural Architecture Search for Mobile" (arXiv 1807.11626).
    Published: 3,887,038 parameters before folding (timm; the paper says 3.9 M), 312 M multiply-adds.
    """
    net = Topology("mnasnet_a1", seed, opset=13)
    x = net.unit(net.image(3, 224, 224), 32, 3, 2)
    x = net.unit(net.depthwise(x), 16, act="none")
    x = net.unit(_residuals(net, x, MNASNET_A1, "relu"), 1280)
    return net.classified(net.pooled(x))


def build_efficientnet_lite0(seed: int) -> ModelProto:
    """Build EfficientNet-Lite0 at 224x224, 1000 classes: no squeeze-and-excitation, relu6 for swish.

    Tan and Le 2019, "EfficientNet: Rethinking Model Scaling for Convolutional Neural Networks" (arXiv 1905.11946),
    in the variant for mobile accelerators of 2020. Published: 4,652,008 parameters before folding (timm).
    """
    net = Topology("efficientnet_lite0", seed, opset=13)
    x = net.unit(net.image(3, 224, 224), 32, 3, 2, "relu6")
    x = net.unit(_residuals(net, x, EFFICIENTNET_LITE0, "relu6"), 1280, act="relu6")
    return net.classified(net.pooled(x))


def build_ghostnet(seed: int) -> ModelProto:
    """Build GhostNet 1.0 at 224x224, 1000 classes: half of the channels come from cheap depthwise convolutions.

    Han et al. 2019, "GhostNet: More Features from Cheap Operations" (arXiv 1911.11907).
    Published: 5.18 M parameters before folding (the paper says 5.2 M), 141 M multiply-adds.
    """
    net = Topology("ghostnet", seed, opset=14)
    x = net.unit(net.image(3, 224, 224), 16, 3, 2)
    for kernel, hidden, channels, squeezes, stride in GHOSTNET:
        y = _ghost(net, x, hidden, "relu")
        if stride > 1:
            y = net.depthwise(y, kernel, stride, "none")
        if squeezes:
            y = net.squeeze_excite(y, rounded(hidden / 4, 4), gate="hard_sigmoid")
        y = _ghost(net, y, channels, "none")
        if stride > 1 or net.channels(x) != channels:
            x = net.unit(net.depthwise(x, kernel, stride, "none"), channels, act="none")
        x = net.add(y, x)
    x = net.op("GlobalAveragePool", net.unit(x, 960))
    return net.classified(net.flat(net.activate(net.convolve(x, 1280), "relu")))


def _ghost(net: Topology, x: str, channels: int, act: Act) -> str:
    """Append a ghost module, with the slice that keeps all its channels."""
    x = net.unit(x, channels // 2, act=act)
    x = net.concat(x, net.depthwise(x, act=act))
    bounds = [net.value([bound]) for bound in (0, channels, 1, 1)]
    return net.sized(net.op("Slice", x, *bounds), channels)


def build_shufflenetv2(seed: int) -> ModelProto:
    """Build ShuffleNetV2 1.0 at 224x224, 1000 classes: channels are split, and shuffled by transposition.

    Ma et al. 2018, "ShuffleNet V2: Practical Guidelines for Efficient CNN Architecture Design" (arXiv 1807.11164).
    Published: 2,278,604 parameters before folding (torchvision), 146 M multiply-adds.
    """
    net = Topology("shufflenetv2", seed, opset=13)
    x = net.max_pool(net.unit(net.image(3, 224, 224), 24, 3, 2))
    size = 56
    for channels, blocks in SHUFFLENETV2_STAGES:
        size //= 2
        half = channels // 2
        for block in range(blocks):
            if block == 0:
                kept, moved, stride = net.unit(net.depthwise(x, 3, 2, "none"), half), x, 2
            else:
                (kept, moved), stride = net.split(x, (half, half)), 1
            moved = net.unit(net.depthwise(net.unit(moved, half), 3, stride, "none"), half)
            x = net.concat(kept, moved)
            x = net.transposed(net.reshaped(x, 1, 2, half, size, size), 0, 2, 1, 3, 4)
            x = net.reshaped(x, 1, channels, size, size)
    x = net.op("ReduceMean", net.unit(x, 1024), axes=[2, 3], keepdims=0)
    return net.classified(x)


def build_pp_lcnet(seed: int) -> ModelProto:
    """Build PP-LCNet 1.0 at 224x224, 1000 classes, with hard swish as Add, Clip, Mul and Div.

    Cui et al. 2021, "PP-LCNet: A Lightweight CPU Convolutional Neural Network" (arXiv 2109.15099).
    Published: 2.96 M parameters, 161 M multiply-adds.
    """
    net = Topology("pp_lcnet", seed, opset=13)
    swish: Act = "hard_swish_arithmetic"
    x = net.unit(net.image(3, 224, 224), 16, 3, 2, swish)
    for kernel, channels, stride, squeezes in PP_LCNET_BLOCKS:
        x = net.depthwise(x, kernel, stride, swish)
        if squeezes:
            x = net.squeeze_excite(x, net.channels(x) // 4, gate="hard_sigmoid")
        x = net.unit(x, channels, act=swish)
    x = net.convolve(net.op("GlobalAveragePool", x), 1280, bias=False)
    return net.classified(net.flat(net.activate(x, swish)))


def build_squeezenext(seed: int) -> ModelProto:
    """Build 1.0-SqNxt-23 at 227x227, 1000 classes: every kernel of 3x3 is a 3x1 and a 1x3.

    Gholami et al. 2018, "SqueezeNext: Hardware-Aware Neural Network Design" (arXiv 1803.10615).
    Published: 0.72 M parameters, 282 M multiply-adds.
    """
    net = Topology("squeezenext", seed, opset=15, fold=False)
    x = net.max_pool(net.unit(net.image(3, 227, 227), 64, 7, 2, pads=(1, 1, 1, 1)), 3, 2, (0, 0, 0, 0))
    for stage, (channels, blocks) in enumerate(SQUEEZENEXT_STAGES):
        for block in range(blocks):
            stride = 2 if stage > 0 and block == 0 else 1
            inside = net.channels(x)
            divisor = 1 if stride == 2 else 2
            if inside > channels:
                divisor = 4
            y = net.unit(x, inside // divisor, 1, stride)
            y = net.unit(y, inside // divisor // 2)
            y = net.unit(net.unit(y, inside // divisor, (1, 3)), inside // divisor, (3, 1))
            y = net.unit(y, channels)
            if stride > 1 or inside != channels:
                x = net.unit(x, channels, 1, stride)
            x = net.activate(net.add(y, x), "relu")
    return net.classified(net.pooled(net.unit(x, 128)))
