"""Which nodes a runtime executes as one, read from the graph that it reports; one module per runtime."""
