"""Several cores: groups of layers on groups of cores, messages between them, and a program for every core (S5)."""
