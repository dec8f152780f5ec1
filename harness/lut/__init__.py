"""Lookup tables: build, store, compare, export."""
