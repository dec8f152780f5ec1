"""Networks from files: read, checked and prepared, and the limits of memory and time for a file.

| to read | use | returns |
|---|---|---|
| a list of networks, to measure them | `network_list.read_networks` | networks, and those refused |
| a list of networks, to estimate them | `keyed_reading.read_keyed_networks` | keys of layers; uses the cache |
| one network by its reference | `model_references.load_network` | the prepared network |
| a file in a process with limits | `reading.limited_reading.read_network` | the prepared network |
| bytes that are trusted | `reading.read.check_model`, then `reading.prepare.prepare` | the prepared network |
| a network for the emulated NPU | `harness.npu.loading.load_model` | its content under its own names |
| the same, compiled | `harness.npu.loading.compile_reference` | a compiled model |
"""
