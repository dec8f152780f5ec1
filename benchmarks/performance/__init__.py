"""The time that harness and the emulated NPU take, how it grows, and other tools beside them: docs/performance.md."""
