"""Graphs that runtimes report: which nodes they execute as one. One module per runtime, registered in `formats`."""
