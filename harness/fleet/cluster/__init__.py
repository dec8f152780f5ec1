"""Run requests on other hosts through a Dask scheduler and workers close to the devices (extra `cluster`)."""
