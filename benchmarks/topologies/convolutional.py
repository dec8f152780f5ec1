"""Convolutional classifiers: plain, residual, dense, with grouped convolutions, and with large kernels."""

from collections.abc import Sequence
from typing import Final

from onnx import ModelProto

from benchmarks.topologies.layers import Topology

VGG11_CHANNELS: Final = ((64,), (128,), (256, 256), (512, 512), (512, 512))
RESNET34_BLOCKS: Final = ((64, 3), (128, 4), (256, 6), (512, 3))
RESNEXT50_BLOCKS: Final = ((256, 3), (512, 4), (1024, 6), (2048, 3))
RESNEXT_GROUPS: Final = 32
REGNETY_400MF_BLOCKS: Final = ((48, 1), (104, 3), (208, 6), (440, 6))
REGNETY_GROUP_WIDTH: Final = 8
REPVGG_A0_BLOCKS: Final = ((48, 1), (48, 2), (96, 4), (192, 14), (1280, 1))
DENSENET_GROWTH, DENSENET_LAYERS, DENSENET_CLASSES = 12, 16, 10
CONVNEXT_TINY_BLOCKS: Final = ((96, 3), (192, 3), (384, 9), (768, 3))
XCEPTION_ENTRY: Final = (64, 128, 364)
XCEPTION_MIDDLE_BLOCKS: Final = 4


def build_vgg11(seed: int) -> ModelProto:
    """Build VGG-11 (configuration A) at 224x224, 1000 classes.

    Simonyan and Zisserman 2014, "Very Deep Convolutional Networks for Large-Scale Image Recognition"
    (arXiv 1409.1556). Published: 132,863,336 parameters (torchvision), 7.6 G multiply-adds.
    """
    net = Topology("vgg11", seed, opset=13)
    x = net.image(3, 224, 224)
    for stage in VGG11_CHANNELS:
        for channels in stage:
            x = net.activate(net.convolve(x, channels, 3), "relu")
        x = net.max_pool(x, 2, 2, (0, 0, 0, 0))
    x = net.flat(x, 7 * 7)
    for _ in range(2):
        x = net.dense(x, 4096, "relu")
    return net.classified(x)


def build_resnet34(seed: int) -> ModelProto:
    """Build ResNet-34 at 224x224, 1000 classes, with batch norms folded.

    He et al. 2015, "Deep Residual Learning for Image Recognition" (arXiv 1512.03385).
    Published: 21,797,672 parameters before folding (torchvision), 3.6 G multiply-adds.
    """
    net = Topology("resnet34", seed, opset=13)
    x = net.max_pool(net.unit(net.image(3, 224, 224), 64, 7, 2))
    for stage, (channels, blocks) in enumerate(RESNET34_BLOCKS):
        for block in range(blocks):
            stride = 2 if stage > 0 and block == 0 else 1
            y = net.unit(net.unit(x, channels, 3, stride), channels, 3, act="none")
            x = net.activate(net.add(y, _shortcut(net, x, channels, stride)), "relu")
    return net.classified(net.pooled(x))


def _shortcut(net: Topology, x: str, channels: int, stride: int) -> str:
    if stride == 1 and net.channels(x) == channels:
        return x
    return net.unit(x, channels, 1, stride, "none")


def build_resnext50(seed: int) -> ModelProto:
    """Build ResNeXt-50 32x4d at 224x224, 1000 classes, with batch norms as operators.

    Xie et al. 2016, "Aggregated Residual Transformations for Deep Neural Networks" (arXiv 1611.05431).
    Published: 25,028,904 parameters (torchvision), 4.2 G multiply-adds.
    """
    net = Topology("resnext50", seed, opset=15, fold=False)
    x = net.max_pool(net.unit(net.image(3, 224, 224), 64, 7, 2))
    for stage, (channels, blocks) in enumerate(RESNEXT50_BLOCKS):
        for block in range(blocks):
            stride = 2 if stage > 0 and block == 0 else 1
            y = net.unit(net.unit(x, channels // 2), channels // 2, 3, stride, groups=RESNEXT_GROUPS)
            y = net.unit(y, channels, act="none")
            x = net.activate(net.add(y, _shortcut(net, x, channels, stride)), "relu")
    return net.classified(net.pooled(x))


def build_regnety_400mf(seed: int) -> ModelProto:
    """Build RegNetY-400MF at 224x224, 1000 classes: grouped convolutions and squeeze-and-excitation.

    Radosavovic et al. 2020, "Designing Network Design Spaces" (arXiv 2003.13678).
    Published: 4,344,144 parameters before folding (torchvision), 0.4 G multiply-adds.
    """
    net = Topology("regnety_400mf", seed)
    x = net.unit(net.image(3, 224, 224), 32, 3, 2)
    for channels, blocks in REGNETY_400MF_BLOCKS:
        for block in range(blocks):
            stride = 2 if block == 0 else 1
            y = net.unit(net.unit(x, channels), channels, 3, stride, groups=channels // REGNETY_GROUP_WIDTH)
            y = net.squeeze_excite(y, round(net.channels(x) / 4))
            y = net.unit(y, channels, act="none")
            x = net.activate(net.add(_shortcut(net, x, channels, stride), y), "relu")
    return net.classified(net.pooled(x))


def build_repvgg_a0(seed: int) -> ModelProto:
    """Build RepVGG-A0 at 224x224, 1000 classes, in its form for inference: one convolution per block.

    Ding et al. 2021, "RepVGG: Making VGG-style ConvNets Great Again" (arXiv 2101.03697).
    Published: 8.30 M parameters, 1.4 G multiply-adds.
    """
    net = Topology("repvgg_a0", seed, opset=13)
    x = net.image(3, 224, 224)
    for channels, blocks in REPVGG_A0_BLOCKS:
        for block in range(blocks):
            x = net.unit(x, channels, 3, 2 if block == 0 else 1)
    return net.classified(net.pooled(x))


def build_densenet_bc_100(seed: int) -> ModelProto:
    """Build DenseNet-BC-100 with growth 12 at 32x32, 10 classes: normalised and activated before each convolution.

    Huang et al. 2016, "Densely Connected Convolutional Networks" (arXiv 1608.06993).
    Published: 769,162 parameters (the paper says 0.8 M).
    """
    net = Topology("densenet_bc_100", seed, opset=14, fold=False)
    x = net.convolve(net.image(3, 32, 32), 2 * DENSENET_GROWTH, 3, bias=False)
    for block in range(3):
        for _ in range(DENSENET_LAYERS):
            y = net.activate(net.normed(x), "relu")
            y = net.unit(y, 4 * DENSENET_GROWTH)
            x = net.concat(x, net.convolve(y, DENSENET_GROWTH, 3, bias=False))
        x = net.activate(net.normed(x), "relu")
        if block < 2:
            x = net.average_pool(net.convolve(x, net.channels(x) // 2, bias=False))
    return net.classified(net.pooled(x), DENSENET_CLASSES)


def build_convnext_tiny(seed: int) -> ModelProto:
    """Build ConvNeXt-Tiny at 224x224, 1000 classes: blocks in channels-last order between two transpositions.

    Liu et al. 2022, "A ConvNet for the 2020s" (arXiv 2201.03545).
    Published: 28,589,128 parameters (torchvision), 4.5 G multiply-adds.
    """
    net = Topology("convnext_tiny", seed)
    x = net.image(3, 224, 224)
    for stage, (channels, blocks) in enumerate(CONVNEXT_TINY_BLOCKS):
        kernel = 4 if stage == 0 else 2
        if stage > 0:
            x = _channel_norm(net, x)
        x = net.convolve(x, channels, kernel, kernel, pads=(0, 0, 0, 0))
        if stage == 0:
            x = _channel_norm(net, x)
        for _ in range(blocks):
            x = _convnext_block(net, x)
    x = net.flat(_channel_norm(net, net.op("GlobalAveragePool", x)))
    return net.classified(x)


def _channel_norm(net: Topology, x: str) -> str:
    x = net.transposed(x, 0, 2, 3, 1)
    width = net.channels(x)
    x = net.layer_norm(net.label("LayerNormalization"), x, width, epsilon=1e-6)
    return net.sized(net.transposed(x, 0, 3, 1, 2), width)


def _convnext_block(net: Topology, x: str) -> str:
    width = net.channels(x)
    y = net.transposed(net.convolve(x, width, 7, groups=width), 0, 2, 3, 1)
    y = net.layer_norm(net.label("LayerNormalization"), y, width, epsilon=1e-6)
    y = net.activate(net.linear(net.label("MatMul"), y, (width, 4 * width)), "gelu")
    y = net.transposed(net.linear(net.label("MatMul"), y, (4 * width, width)), 0, 3, 1, 2)
    scale = net.normal(net.label("layer_scale"), (width, 1, 1), mean=0.1)
    return net.sized(net.add(net.mul(scale, y), x), width)


def build_inception_resnet(seed: int) -> ModelProto:
    """Build a small Inception-ResNet at 160x160, 512 features: the blocks of version 1, fewer of each.

    Szegedy et al. 2016, "Inception-v4, Inception-ResNet and the Impact of Residual Connections on Learning"
    (arXiv 1602.07261). Two, three and two blocks A, B and C, where the paper has five, ten and five.
    """
    net = Topology("inception_resnet", seed, opset=16)
    none = (0, 0, 0, 0)
    x = net.unit(net.image(3, 160, 160), 32, 3, 2, pads=none)
    x = net.unit(net.unit(x, 32, 3, pads=none), 64, 3)
    x = net.unit(net.max_pool(x, 3, 2, none), 80)
    x = net.unit(net.unit(x, 192, 3, pads=none), 256, 3, 2, pads=none)
    for _ in range(2):
        x = _mixed(net, x, 0.17, (32, ()), (32, (3,)), (32, (3, 3)))
    middle = net.unit(net.unit(net.unit(x, 192), 192, 3), 256, 3, 2, pads=none)
    x = net.concat(net.unit(x, 384, 3, 2, pads=none), middle, net.max_pool(x, 3, 2, none))
    for _ in range(3):
        x = _mixed(net, x, 0.1, (128, ()), (128, ((1, 7), (7, 1))))
    tails = [net.unit(net.unit(x, 256), outputs, 3, 2, pads=none) for outputs in (384, 256)]
    deep = net.unit(net.unit(net.unit(x, 256), 256, 3), 256, 3, 2, pads=none)
    x = net.concat(*tails, deep, net.max_pool(x, 3, 2, none))
    for _ in range(2):
        x = _mixed(net, x, 0.2, (192, ()), (192, ((1, 3), (3, 1))))
    return net.classified(net.pooled(x), 512)


def _mixed(net: Topology, x: str, scale: float, *branches: tuple[int, Sequence[int | tuple[int, int]]]) -> str:
    """Append an Inception-ResNet block: branches of a 1x1 and further kernels, joined, scaled and added."""
    ends = []
    for channels, kernels in branches:
        y = net.unit(x, channels)
        for kernel in kernels:
            y = net.unit(y, channels, kernel)
        ends.append(y)
    y = net.convolve(net.concat(*ends), net.channels(x))
    return net.activate(net.add(net.mul(y, net.value(scale)), x), "relu")


def build_xception(seed: int) -> ModelProto:
    """Build a small Xception at 224x224, 1000 classes: half the channels and half the blocks of the middle.

    Chollet 2016, "Xception: Deep Learning with Depthwise Separable Convolutions" (arXiv 1610.02357).
    """
    net = Topology("xception", seed, opset=15, fold=False)
    x = net.unit(net.unit(net.image(3, 224, 224), 16, 3, 2), 32, 3)
    for stage, channels in enumerate(XCEPTION_ENTRY):
        x = _xception_block(net, x, (channels, channels), 2, start_active=stage > 0)
    middle = XCEPTION_ENTRY[-1]
    for _ in range(XCEPTION_MIDDLE_BLOCKS):
        x = _xception_block(net, x, (middle,) * 3, 1)
    x = _xception_block(net, x, (middle, 512), 2)
    for channels in (768, 1024):
        x = net.activate(_separable(net, x, channels), "relu")
    return net.classified(net.pooled(x))


def _xception_block(net: Topology, x: str, channels: tuple[int, ...], stride: int, start_active: bool = True) -> str:
    y = x
    for index, outputs in enumerate(channels):
        y = _separable(net, net.activate(y, "relu" if index or start_active else "none"), outputs)
    if stride == 1:
        return net.add(y, x)
    return net.add(net.max_pool(y), net.unit(x, channels[-1], 1, stride, "none"))


def _separable(net: Topology, x: str, channels: int) -> str:
    width = net.channels(x)
    return net.unit(net.convolve(x, width, 3, groups=width, bias=False), channels, act="none")
