"""Many cores event by event: streams of inputs, shared resources, messages between cores."""
