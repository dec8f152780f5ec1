"""Networks for sounds, sequences, points and features: convolutions along one axis, and linear layers."""

from typing import Final

from onnx import ModelProto

from benchmarks.topologies.layers import Topology

TCN_CHANNELS, TCN_LEVELS, TCN_KERNEL, TCN_LENGTH = 25, 8, 7, 784
WAVENET_CHANNELS, WAVENET_SKIPS, WAVENET_LAYERS, WAVENET_STACKS = 64, 128, 10, 2
WAVENET_LENGTH, WAVENET_LEVELS = 4096, 256
RES8_CHANNELS, RES8_LAYERS, RES8_CLASSES = 45, 6, 12
CRNN_SYMBOLS: Final = 37
POINTS, POINTNET_CLASSES = 1024, 40
AUTOENCODER_WIDTHS: Final = (128, 128, 128, 128, 8, 128, 128, 128, 128)
AUTOENCODER_FEATURES: Final = 640


def build_tcn(seed: int) -> ModelProto:
    """Build a temporal convolutional network for sequences of 784 values, 10 classes: 8 levels of 25 channels.

    Bai et al. 2018, "An Empirical Evaluation of Generic Convolutional and Recurrent Networks for Sequence Modeling"
    (arXiv 1803.01271), for sequential MNIST. Published: about 70 K parameters. Both ends are padded, and the surplus
    is cut off, as in the published code.
    """
    net = Topology("tcn", seed, opset=13)
    x = net.image(1, TCN_LENGTH)
    for level in range(TCN_LEVELS):
        y = x
        for _ in range(2):
            y = _causal(net, y, 2**level)
        if net.channels(x) != TCN_CHANNELS:
            x = net.convolve(x, TCN_CHANNELS, (1,))
        x = net.activate(net.add(y, x), "relu")
    x = net.op("Gather", x, net.value(-1), axis=2)
    return net.classified(x, 10)


def _causal(net: Topology, x: str, dilation: int) -> str:
    surplus = dilation * (TCN_KERNEL - 1)
    x = net.convolve(x, TCN_CHANNELS, (TCN_KERNEL,), dilation=dilation, pads=(surplus, surplus))
    bounds = [net.value([bound]) for bound in (0, -surplus, 2, 1)]
    return net.activate(net.op("Slice", x, *bounds), "relu")


def build_wavenet(seed: int) -> ModelProto:
    """Build a small WaveNet over 4096 samples, 256 levels: gated dilated convolutions of two samples, and skips.

    Oord et al. 2016, "WaveNet: A Generative Model for Raw Audio" (arXiv 1609.03499). Two stacks of ten layers with
    dilations of 1 to 512; the input is a waveform and not its levels, all outputs are computed at once.
    """
    net = Topology("wavenet", seed, opset=15)
    x = net.convolve(net.image(1, WAVENET_LENGTH), WAVENET_CHANNELS, (1,))
    skips = ""
    for layer in range(WAVENET_STACKS * WAVENET_LAYERS):
        dilation = 2 ** (layer % WAVENET_LAYERS)
        y = net.convolve(x, 2 * WAVENET_CHANNELS, (2,), dilation=dilation, pads=(dilation, 0))
        content, gate = net.split(y, (WAVENET_CHANNELS, WAVENET_CHANNELS))
        y = net.mul(net.activate(content, "tanh"), net.activate(gate, "sigmoid"))
        skip = net.convolve(y, WAVENET_SKIPS, (1,))
        skips = net.add(skips, skip) if skips else skip
        if layer < WAVENET_STACKS * WAVENET_LAYERS - 1:
            x = net.add(net.convolve(y, WAVENET_CHANNELS, (1,)), x)
    x = net.activate(net.convolve(net.activate(skips, "relu"), WAVENET_SKIPS, (1,)), "relu")
    return net.finished(net.convolve(x, WAVENET_LEVELS, (1,)), WAVENET_LEVELS, WAVENET_LENGTH)


def build_res8(seed: int) -> ModelProto:
    """Build res8 for 101x40 spectral features, 12 keywords: residual convolutions of 45 channels.

    Tang and Lin 2017, "Deep Residual Learning for Small-Footprint Keyword Spotting" (arXiv 1710.10361).
    Published: 110 K parameters, 30 M multiplications. Its batch norms have no scale and no offset; here they have.
    """
    net = Topology("res8", seed, opset=14, fold=False)
    x = net.activate(net.convolve(net.image(1, 101, 40), RES8_CHANNELS, 3, bias=False), "relu")
    x = net.op("AveragePool", x, kernel_shape=[4, 3], strides=[4, 3])
    kept = x
    for layer in range(1, RES8_LAYERS + 1):
        x = net.activate(net.convolve(x, RES8_CHANNELS, 3, bias=False), "relu")
        if layer % 2 == 0:
            x = kept = net.add(x, kept)
        x = net.normed(x)
    x = net.reshaped(x, 1, RES8_CHANNELS, 25 * 13)
    return net.classified(net.op("ReduceMean", x, axes=[2], keepdims=0), RES8_CLASSES)


def build_crnn_conv(seed: int) -> ModelProto:
    """Build the convolutions of CRNN for a line of text of 32x100, 37 symbols, and a linear layer for its LSTM.

    Shi et al. 2015, "An End-to-End Trainable Neural Network for Image-based Sequence Recognition" (arXiv 1507.05717).
    """
    net = Topology("crnn_conv", seed, opset=13)
    none = (0, 0, 0, 0)
    x = net.activate(net.convolve(net.image(1, 32, 100), 64, 3), "relu")
    x = net.activate(net.convolve(net.max_pool(x, 2, 2, none), 128, 3), "relu")
    x = net.unit(net.max_pool(x, 2, 2, none), 256, 3)
    x = net.activate(net.convolve(x, 256, 3), "relu")
    x = net.unit(net.max_pool(x, 2, (2, 1), (0, 1, 0, 1)), 512, 3)
    x = net.activate(net.convolve(x, 512, 3), "relu")
    x = net.unit(net.max_pool(x, 2, (2, 1), (0, 1, 0, 1)), 512, 2, pads=none)
    x = net.transposed(net.op("Squeeze", x, net.value([2])), 2, 0, 1)
    x = net.linear(net.label("MatMul"), x, (512, CRNN_SYMBOLS))
    x = net.op("LogSoftmax", x, axis=2)
    net.output("output", x, (26, 1, CRNN_SYMBOLS))
    return net.model()


def build_pointnet(seed: int) -> ModelProto:
    """Build PointNet for 1024 points, 40 classes, with both transformation networks.

    Qi et al. 2016, "PointNet: Deep Learning on Point Sets for 3D Classification and Segmentation"
    (arXiv 1612.00593). Published: 3.5 M parameters, 440 M multiply-adds.
    """
    net = Topology("pointnet", seed, opset=15, fold=False)
    x = _transformed(net, net.image(3, POINTS))
    x = net.unit(net.unit(x, 64, (1,)), 64, (1,))
    x = net.unit(_transformed(net, x), 64, (1,))
    x = net.unit(net.unit(x, 128, (1,)), 1024, (1,))
    x = net.op("ReduceMax", x, axes=[2], keepdims=0)
    for channels in (512, 256):
        x = net.activate(net.normed(net.dense(x, channels)), "relu")
    return net.finished(net.op("LogSoftmax", net.dense(x, POINTNET_CLASSES), axis=1), POINTNET_CLASSES)


def _transformed(net: Topology, x: str) -> str:
    """Append a network that finds a square matrix for the channels of its points, and the product with it."""
    width = net.channels(x)
    y = net.unit(net.unit(net.unit(x, 64, (1,)), 128, (1,)), 1024, (1,))
    y = net.op("ReduceMax", y, axes=[2], keepdims=0)
    for channels in (512, 256):
        y = net.activate(net.normed(net.dense(y, channels)), "relu")
    y = net.dense(y, width * width)
    identity = net.floats(*(float(row == column) for row in range(width) for column in range(width)))
    matrix = net.reshaped(net.add(y, identity), 1, width, width)
    x = net.op("MatMul", net.transposed(x, 0, 2, 1), matrix)
    return net.sized(net.transposed(x, 0, 2, 1), width)


def build_autoencoder(seed: int) -> ModelProto:
    """Build the autoencoder of MLPerf Tiny for 640 spectral features: linear layers through a width of 8.

    Banbury et al. 2021, "MLPerf Tiny Benchmark" (arXiv 2106.07597), after Koizumi et al. 2020, "Description and
    Discussion on DCASE2020 Challenge Task 2" (arXiv 2006.05822). Published: 0.27 M parameters.
    """
    net = Topology("autoencoder", seed, opset=14, fold=False)
    x = net.image(AUTOENCODER_FEATURES)
    for width in AUTOENCODER_WIDTHS:
        x = net.activate(net.normed(net.dense(x, width)), "relu")
    return net.finished(net.dense(x, AUTOENCODER_FEATURES), AUTOENCODER_FEATURES)
