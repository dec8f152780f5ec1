"""An ONNX model as the compiler reads it: functions expanded, types inferred, constants known."""
