"""OpenVINO: compiled models, the graph that it executes, and its counters per node."""
