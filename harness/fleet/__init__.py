"""Profiling requests on one device or many: every way to profile goes through `execution.run_request`.

::

    `harness profile`, harness.profile -> profile -> one device: execution; several: local_engine
    nights -> local_engine, or cluster.dask_engine -> cluster.dask_worker on the hosts of the devices
    execution.run_request: lease, golden probe (health), campaign (harness.measure), golden probe; retries
"""
