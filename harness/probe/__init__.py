"""Layer + auxiliary layer as probe networks, and the probe plan."""
