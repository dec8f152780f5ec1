"""The compiler: from an ONNX network to binary instructions; `stages` runs its packages in order."""
