"""The cost of harness itself, and the speed of the emulated NPU's timing engines: docs/performance.md."""
