"""The emulated NPU: compiles ONNX networks to binary instructions and executes them, values and time.

`command` is the vocabulary that all parts share, `machine` describes what executes. `compiler` turns a network into a
program of the instruction set `isa`, whose sequencer decodes it into commands again: for `execution` (values) and for
`timing` (event by event, and the formula of S2.6). `reports` tell of a run, `host` is the processor beside it,
`inference` ties all together. Needs Python 3.11, numpy and onnx.
"""
