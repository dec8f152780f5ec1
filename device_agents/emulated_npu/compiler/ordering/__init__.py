"""Stage 5: the order of the commands of a core, with their synchronisation. Entry: `order.order`."""
