"""Networks with an output per pixel or anchor: detection, segmentation, poses and larger images."""

import math
from typing import Final

from onnx import ModelProto

from benchmarks.topologies.layers import Act, Topology

TINY_YOLOV3_OUTPUTS: Final = 3 * (80 + 5)  # three anchors, 80 classes, a box and its confidence
BLAZEFACE_FIRST: Final = ((24, 1), (28, 1), (32, 2), (36, 1), (42, 1), (48, 2), *((56 + 8 * n, 1) for n in range(5)))
BLAZEFACE_LAST: Final = ((96, 2), *((96, 1),) * 4)
BLAZEFACE_VALUES: Final = 16  # a box and six points of a face
FSRCNN_FEATURES, FSRCNN_SHRUNK, FSRCNN_LAYERS = 56, 12, 4
ESPCN_FACTOR: Final = 3
UNET_CHANNELS: Final = (32, 64, 128, 256)
# Expansion, channels, blocks, stride and dilation of MobileNetV2 with a last stage that keeps its size.
DEEPLAB_STAGES: Final = (
    (1, 16, 1, 1, 1),
    (6, 24, 2, 2, 1),
    (6, 32, 3, 2, 1),
    (6, 64, 4, 2, 1),
    (6, 96, 3, 1, 1),
    (6, 160, 3, 1, 2),
    (6, 320, 1, 1, 2),
)
DEEPLAB_CHANNELS, DEEPLAB_CLASSES, DEEPLAB_RATES = 256, 21, (6, 12, 18)
HRNET_CHANNELS: Final = (16, 32, 64, 128)
HRNET_BLOCKS, HRNET_JOINTS = 2, 17


def build_tiny_yolov3(seed: int) -> ModelProto:
    """Build Tiny-YOLOv3 at 416x416, 80 classes: leaky ReLU, one upsampling, outputs of two scales.

    Redmon and Farhadi 2018, "YOLOv3: An Incremental Improvement" (arXiv 1804.02767).
    Published: 8,858,734 parameters with running statistics (darknet), 5.6 G operations.
    """
    net = Topology("tiny_yolov3", seed, opset=13)
    x = net.image(3, 416, 416)
    skip = x
    for channels in (16, 32, 64, 128, 256, 512):
        skip = net.unit(x, channels, 3, act="leaky")
        x = net.max_pool(skip, 2, 1, (0, 0, 1, 1)) if channels == 512 else net.max_pool(skip, 2, 2, (0, 0, 0, 0))
        if channels == 256:
            fine = skip
    x = net.unit(net.unit(x, 1024, 3, act="leaky"), 256, act="leaky")
    coarse = net.convolve(net.unit(x, 512, 3, act="leaky"), TINY_YOLOV3_OUTPUTS)
    x = net.concat(net.upsampled(net.unit(x, 128, act="leaky"), 2.0), fine)
    x = net.convolve(net.unit(x, 256, 3, act="leaky"), TINY_YOLOV3_OUTPUTS)
    net.output("coarse", coarse, (1, TINY_YOLOV3_OUTPUTS, 13, 13))
    net.output("fine", x, (1, TINY_YOLOV3_OUTPUTS, 26, 26))
    return net.model()


def build_blazeface(seed: int) -> ModelProto:
    """Build BlazeFace for front cameras at 128x128, 896 anchors: single blaze blocks, channels padded with zeros.

    Bazarevsky et al. 2019, "BlazeFace: Sub-millisecond Neural Face Detection on Mobile GPUs" (arXiv 1907.05047).
    The sizes of its published weights; about 0.1 M parameters.
    """
    net = Topology("blazeface", seed, opset=13)
    x = net.unit(net.image(3, 128, 128), 24, 5, 2, pads=(1, 1, 2, 2))
    for channels, stride in BLAZEFACE_FIRST:
        x = _blaze(net, x, channels, stride)
    large = x
    for channels, stride in BLAZEFACE_LAST:
        x = _blaze(net, x, channels, stride)
    for name, values in (("scores", 1), ("boxes", BLAZEFACE_VALUES)):
        parts = []
        for source, size, anchors in ((large, 16, 2), (x, 8, 6)):
            y = net.transposed(net.convolve(source, anchors * values), 0, 2, 3, 1)
            parts.append(net.reshaped(y, 1, size * size * anchors, values))
        net.output(name, net.concat(*parts), (1, 896, values))
    return net.model()


def _blaze(net: Topology, x: str, channels: int, stride: int) -> str:
    inside = net.channels(x)
    pads = (0, 0, 1, 1) if stride == 2 else (1, 1, 1, 1)
    y = net.unit(x, inside, 3, stride, "none", groups=inside, pads=pads)
    y = net.unit(y, channels, act="none")
    if stride == 2:
        x = net.max_pool(x, 2, 2, (0, 0, 0, 0))
    if channels > inside:
        padding = net.value([0, 0, 0, 0, 0, channels - inside, 0, 0])
        x = net.op("Pad", x, padding, net.value(0.0), mode="constant")
    return net.activate(net.add(y, x), "relu")


def build_fsrcnn(seed: int) -> ModelProto:
    """Build FSRCNN(56, 12, 4), which doubles a grey image of 320x180: PReLU, and a transposed convolution of 9x9.

    Dong et al. 2016, "Accelerating the Super-Resolution Convolutional Neural Network" (arXiv 1608.00367).
    Published: 12,464 parameters without biases and slopes.
    """
    net = Topology("fsrcnn", seed, opset=13)
    x = net.prelu(net.convolve(net.image(1, 180, 320), FSRCNN_FEATURES, 5))
    x = net.prelu(net.convolve(x, FSRCNN_SHRUNK))
    for _ in range(FSRCNN_LAYERS):
        x = net.prelu(net.convolve(x, FSRCNN_SHRUNK, 3))
    x = net.prelu(net.convolve(x, FSRCNN_FEATURES))
    name = net.label("ConvTranspose")
    weight = net.he_normal(f"{name}.weight", (FSRCNN_FEATURES, 1, 9, 9), fan_in=FSRCNN_FEATURES * 9 * 9)
    x = net.node(
        "ConvTranspose",
        name,
        x,
        weight,
        net.normal(f"{name}.bias", (1,)),
        dilations=[1, 1],
        group=1,
        kernel_shape=[9, 9],
        output_padding=[1, 1],
        pads=[4] * 4,
        strides=[2, 2],
    )
    return net.finished(x, 1, 360, 640)


def build_espcn(seed: int) -> ModelProto:
    """Build ESPCN, which triples a grey image of 320x180: tanh, and a shuffle of channels into pixels.

    Shi et al. 2016, "Real-Time Single Image and Video Super-Resolution Using an Efficient Sub-Pixel Convolutional
    Neural Network" (arXiv 1609.05158). Layers 5-3-3 with 64 and 32 features, as published.
    """
    net = Topology("espcn", seed, opset=13)
    x = net.activate(net.convolve(net.image(1, 180, 320), 64, 5), "tanh")
    x = net.activate(net.convolve(x, 32, 3), "tanh")
    x = net.op("DepthToSpace", net.convolve(x, ESPCN_FACTOR**2, 3), blocksize=ESPCN_FACTOR, mode="CRD")
    return net.finished(x, 1, 540, 960)


def build_unet(seed: int) -> ModelProto:
    """Build a U-Net at 128x128, 2 classes, of half the published width, upsampled by bilinear interpolation.

    Ronneberger et al. 2015, "U-Net: Convolutional Networks for Biomedical Image Segmentation" (arXiv 1505.04597).
    """
    net = Topology("unet", seed, opset=16)
    x = net.image(3, 128, 128)
    skips = []
    for channels in UNET_CHANNELS:
        x = net.unit(net.unit(x, channels, 3), channels, 3)
        skips.append(x)
        x = net.max_pool(x, 2, 2, (0, 0, 0, 0))
    x = net.unit(net.unit(x, 512, 3), 256, 3)
    for channels in reversed(UNET_CHANNELS):
        x = net.concat(skips.pop(), net.upsampled(x, 2.0, "linear"))
        x = net.unit(net.unit(x, channels, 3), max(channels // 2, UNET_CHANNELS[0]), 3)
    return net.finished(net.convolve(x, 2), 2, 128, 128)


def build_deeplabv3(seed: int) -> ModelProto:
    """Build DeepLabV3 on MobileNetV2 at 256x256, 21 classes: dilated convolutions at a sixteenth of the size.

    Chen et al. 2017, "Rethinking Atrous Convolution for Semantic Image Segmentation" (arXiv 1706.05587), on the
    network of Sandler et al. 2018 (arXiv 1801.04381). Five branches of 256 channels, at the rates 6, 12 and 18.
    """
    net = Topology("deeplabv3", seed, opset=15)
    x = net.unit(net.image(3, 256, 256), 32, 3, 2, "relu6")
    for expansion, channels, blocks, first_stride, dilation in DEEPLAB_STAGES:
        for block in range(blocks):
            stride = first_stride if block == 0 else 1
            y = net.unit(x, expansion * net.channels(x), act="relu6") if expansion > 1 else x
            y = net.depthwise(y, 3, stride, "relu6", dilation)
            y = net.unit(y, channels, act="none")
            x = net.add(x, y) if stride == 1 and net.channels(x) == channels else y
    branches = [net.unit(x, DEEPLAB_CHANNELS)]
    branches += [net.unit(x, DEEPLAB_CHANNELS, 3, dilation=rate) for rate in DEEPLAB_RATES]
    whole = net.unit(net.op("GlobalAveragePool", x), DEEPLAB_CHANNELS)
    branches.append(net.upsampled(whole, 16.0, "linear"))
    x = net.unit(net.unit(net.concat(*branches), DEEPLAB_CHANNELS), DEEPLAB_CHANNELS, 3)
    x = net.upsampled(net.convolve(x, DEEPLAB_CLASSES), 16.0, "linear")
    return net.finished(x, DEEPLAB_CLASSES, 256, 256)


def build_hrnet(seed: int) -> ModelProto:
    """Build a small HRNet at 256x192 with heat maps of 17 joints: parallel resolutions, exchanged after every stage.

    Sun et al. 2019, "Deep High-Resolution Representation Learning for Human Pose Estimation" (arXiv 1902.09212),
    with the widths and the single module per stage of the published HRNet-W18-Small-v1.
    """
    net = Topology("hrnet", seed, opset=13)
    x = net.unit(net.unit(net.image(3, 256, 192), 64, 3, 2), 64, 3, 2)
    y = net.unit(net.unit(net.unit(x, 32), 32, 3), 128, act="none")
    x = net.activate(net.add(y, net.unit(x, 128, act="none")), "relu")
    branches = [net.unit(x, HRNET_CHANNELS[0], 3), net.unit(x, HRNET_CHANNELS[1], 3, 2)]
    for stage in range(2, 5):
        if len(branches) < stage:
            branches.append(net.unit(branches[-1], HRNET_CHANNELS[stage - 1], 3, 2))
        branches = [_basic_blocks(net, branch) for branch in branches]
        outputs = 1 if stage == 4 else stage
        branches = [_exchanged(net, branches, target) for target in range(outputs)]
    return net.finished(net.convolve(branches[0], HRNET_JOINTS), HRNET_JOINTS, 64, 48)


def _basic_blocks(net: Topology, x: str) -> str:
    for _ in range(HRNET_BLOCKS):
        y = net.unit(net.unit(x, net.channels(x), 3), net.channels(x), 3, act="none")
        x = net.activate(net.add(y, x), "relu")
    return x


def _exchanged(net: Topology, branches: list[str], target: int) -> str:
    """Append the sum of all branches at the resolution of one of them."""
    total = ""
    for source, x in enumerate(branches):
        y = x
        if source > target:
            y = net.unit(x, HRNET_CHANNELS[target], act="none")
            y = net.upsampled(y, math.ldexp(1.0, source - target))
        for step in range(source + 1, target + 1):
            last = step == target
            act: Act = "none" if last else "relu"
            y = net.unit(y, HRNET_CHANNELS[target if last else source], 3, 2, act)
        total = net.add(total, y) if total else y
    return net.activate(total, "relu")
