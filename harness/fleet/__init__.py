"""A lab of devices: which, how they are, what runs on them side by side, every night."""
