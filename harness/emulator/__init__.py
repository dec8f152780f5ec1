"""The emulated NPU as functions on values, which the `harness npu` commands call.

The one package of the host that knows `device_agents.emulated_npu`. `loading` reads networks and program files; `run`,
`pipeline`, `split_comparison` and `sweep` measure; the modules named *_fields and *_tables turn their results into JSON
fields, CSV rows and text tables. `options` declares the options of the commands.
"""
