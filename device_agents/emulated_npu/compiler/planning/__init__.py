"""Stage 4: chains, tiles, addresses and commands of every core. Entry: `plan.plan`."""
