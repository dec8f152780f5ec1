"""One chain: its tiles, its buffers, its weights, and the commands of its passes."""
