"""From a graph to chains of layers with tiles, buffers and commands, chosen by predicted time."""
