"""ONNX Runtime: sessions, the optimized graph, and its profile per node."""
