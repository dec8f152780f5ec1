"""The emulated NPU: compiles ONNX networks to binary instructions and executes them, values and time.

All parts share the commands of `unit_commands` and the description in `machine`. `compiler` turns a network into a
program of the instruction set `isa`, whose sequencer decodes it into commands again, for `execution` (values) and for
`timing` (event by event, and by the formula of S2.6). `partition` divides a network over core groups, `many_cores` runs
one on them. `reports` summarise a run, `host_processor` models the processor that drives the NPU, and `inference` runs
a network from end to end. Needs Python 3.11, numpy and onnx.
"""
