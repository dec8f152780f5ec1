"""Networks: read and check ONNX files, infer types, cut into layers, compute layer keys, assemble models.

The way of a file, in the order in which to read the modules::

    network_list, keyed_reading   the networks of a command, read in several processes; estimates use the cache
    model_references              one network: a file, one that ships with harness, or a model in memory
    reading.limited_reading       the file in a process with limits on memory and time; there:
        reading.read                  bytes -> ModelFile: parsed and checked
        reading.prepare               ModelFile -> Network: every tensor has a type, constants are folded, control
                                      flow is replaced (control_flow, unrolling, sequences)
        reading.batch                 Network -> Network with another batch
        reading.network_codec         Network -> bytes -> Network, checked again in the parent
    fusion.fusion_rules           Network -> Network as a device executes it, and the rules of its fusion
    fusion.rule_matching          Network, rules -> groups of nodes
    layers, key                   groups -> Layer: a key of operators and shapes, and a context
    keyed_network                 Network -> what a table needs of it
    assemble                      some nodes of a Network -> AssembledModel, which a device loads without weights
    runtime_graph                 what a runtime reports of an AssembledModel -> groups
    fusion.rule_learning          groups -> rules
"""
