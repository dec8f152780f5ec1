"""The emulated NPU: compiles ONNX networks to binary instructions and executes them, values and time.

`command` is the vocabulary that all parts share; `machine` describes what executes; `compiler` turns a
network into a `program`; `sequencer` decodes it into commands again, for `functional` (values), `timing`
(event by event) and `formula` (the closed form of S2.6). Needs Python 3.11, numpy and onnx.
"""
