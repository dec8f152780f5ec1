"""Faults, kills, golden probes, nights and fuzzing: docs/reliability.md."""
