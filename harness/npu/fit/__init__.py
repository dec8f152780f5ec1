"""Fit a machine description to the layers of a table: rates, bandwidths, start-ups and overlap, with intervals."""
