"""From commands to binary instructions: order, synchronisation, loops, registers."""
