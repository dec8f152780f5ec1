"""Run profiling requests on the devices of a lab: select devices, check their health, run on several at once."""
