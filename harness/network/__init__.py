"""ONNX in: read, check, shapes, fusion, layers, layer keys."""
