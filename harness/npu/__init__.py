"""The emulated NPU as functions on values, which the `harness npu` commands call.

::

    reference -> loading -> CompiledModel or LoadedProgram -> run.core_run, pipeline.pipeline_run,
                                                              split.split_study, sweep.points -> results
    results   -> modules *_fields and *_tables -> JSON fields, CSV rows, text tables
    table     -> fit.machine_fit -> fitted machine

The one package of the host that knows `device_agents.emulated_npu`. `npu_options` declares the options of the commands.
"""
