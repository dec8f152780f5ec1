"""A network on one core of the emulated NPU: compiled, run and timed, as data, tables, traces and a page."""
