"""Stage 2: convolutions computed by DFTs of blocks of odd size, where they are predicted to be faster than directly.

Entry: `choice.choose_convolutions`.
"""
