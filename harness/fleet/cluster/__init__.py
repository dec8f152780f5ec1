"""The engine beyond one host: jobs as tasks of a Dask scheduler, on workers beside the devices (extra `cluster`)."""
