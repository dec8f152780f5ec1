"""A layer as numbers: from its key to loop-nest features, and from many layers to arrays."""
