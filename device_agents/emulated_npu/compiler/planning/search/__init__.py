"""The search for chains: where they end and how each is cut, by predicted time."""
