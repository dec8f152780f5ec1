"""Emulated NPU: docs/emulator.md."""
