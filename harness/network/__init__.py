"""Networks: read and check ONNX files, infer types, cut into layers, compute layer keys, assemble models.

::

    file -> reading -> Network -> layers.cut, by rules of `fusion` -> Layer with its key
    Network, some of its nodes -> assemble -> AssembledModel, which a device loads without weights
    graph that a runtime reports -> runtime_graph -> rules of `fusion`
"""
