"""Stage 1: from an ONNX model to a graph of hardware layers. Entry: `importer.import_model`."""
