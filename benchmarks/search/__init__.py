"""A search for a network under a latency bound, from a super-network to a measured network."""
