"""Puts `tiled_machine` and `v100_convolutions` on the path of the tests in the folders below."""
