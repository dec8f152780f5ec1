"""A network divided over core groups, and a stream of inputs through them."""
