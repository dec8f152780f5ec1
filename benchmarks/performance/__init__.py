"""Cost of harness and speed of the timing engines: docs/performance.md."""
