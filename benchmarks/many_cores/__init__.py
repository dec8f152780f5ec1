"""Emulated NPU with several cores: docs/many_cores.md."""
