"""Cut networks into layers as a device executes them: as it reports, or as probes of its fusion show."""
