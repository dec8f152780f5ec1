"""Stage 6: binary instructions with loops and registers. Entry: `emit.emit`."""
