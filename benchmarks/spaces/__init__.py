"""Choice of the layers of a space: docs/spaces.md."""
