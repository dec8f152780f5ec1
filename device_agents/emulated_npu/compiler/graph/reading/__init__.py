"""An ONNX model as the compiler reads it: functions expanded, types inferred, constants known.

`harness.network.reading` reads files of people on the host: it checks them, binds dimensions and finds layers. A device
never imports it; it gets models of fixed shapes, and this package expands operators into those that the hardware has.
"""
