"""Stage 2: convolutions computed by DFT of odd blocks. Entry: `choice.choose_convolutions`."""
