"""What the `harness npu` commands do, as functions on values: run, pipeline, layer splits, sweep, trace, listing.

The one package of the host that knows `device_agents.emulated_npu`. `loading` reads networks and program files, `run`,
`pipeline`, `layer_splits` and `sweep` measure, and the modules named after them return JSON fields, CSV rows and text
tables. `options` declares what the commands offer.
"""
