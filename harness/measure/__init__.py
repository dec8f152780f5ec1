"""Measure one device: profiling campaigns, the journal of samples, fusion found by probes, journals of other hosts."""
