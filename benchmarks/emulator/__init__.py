"""Emulated NPU: docs/emulator.md and the pages beside it."""
