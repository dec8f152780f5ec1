"""The nightly: one resumable command that measures a lab, publishes tables, compares nights and reports.

::

    nightly.toml -> night_plan -> due_jobs -> job_queue -> engine of harness.fleet -> results in the fleet's store
    results -> night, which publishes tables -> set_comparison (harness.slowdowns) -> NightReport
"""
