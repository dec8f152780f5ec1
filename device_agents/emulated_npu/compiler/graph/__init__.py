"""From an ONNX model to a graph of hardware layers: reading, folding, operators, views."""
