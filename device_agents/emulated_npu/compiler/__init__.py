"""From an ONNX network to binary instructions, one stage a module (S2.5)."""
