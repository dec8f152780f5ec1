"""Run requests on other hosts through a Dask scheduler and workers beside the devices (extra `cluster`)."""
