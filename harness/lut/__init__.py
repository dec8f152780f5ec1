"""Lookup tables: build, publish, read, compare and export them."""
