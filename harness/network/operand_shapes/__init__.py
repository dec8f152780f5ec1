"""Whether the shapes of what a node reads fit each other, where ONNX's shape inference does not look.

Inference finds the shape of a result. It accepts a convolution whose weights have other channels than its input, or a
bias of any size, and runtimes refuse such a network long after it was read. The rules are those of the operators'
specifications; what only one runtime demands is not among them.
"""
