"""Stage 5: the order of the commands of one core, with their synchronisation."""
