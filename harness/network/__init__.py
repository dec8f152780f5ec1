"""Networks: read and check ONNX files, infer types, cut into layers, compute layer keys, assemble models."""
