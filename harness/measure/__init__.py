"""Run profiling campaigns on one device, repeat visits until they are precise, and record every sample."""
