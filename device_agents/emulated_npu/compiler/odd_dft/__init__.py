"""Convolutions computed by odd-length DFTs (S4): which ones, and the layers that replace them."""
