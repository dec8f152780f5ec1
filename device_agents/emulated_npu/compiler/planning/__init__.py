"""Stage 4: choose chains, tiles and addresses, and write the commands of every core. Entry: `plan.plan`.

`codegen` only encodes these commands.
"""
