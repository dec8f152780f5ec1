"""The emulated NPU as functions on values, which the `harness npu` commands call.

The one package of the host that knows `device_agents.emulated_npu`. `loading` reads networks and program files.
`core_run`, `pipeline_run`, `split_comparison` and `sweep` measure, and `fit` finds a machine from a device's table. The
modules named *_fields and *_tables turn their results into JSON fields, CSV rows and text tables. `npu_options`
declares the options of the commands.
"""
