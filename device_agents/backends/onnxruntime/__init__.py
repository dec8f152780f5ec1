"""ONNX Runtime: sessions, the optimized graph, and its profile per node."""

import os

os.environ["ORT_DISABLE_TELEMETRY"] = "1"  # before the runtime is imported: its wheels report to their vendor
