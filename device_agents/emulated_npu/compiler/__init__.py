"""The compiler: from an ONNX network to binary instructions; `pipeline` runs its stages in order."""
