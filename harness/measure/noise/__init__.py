"""How quiet a machine was while it measured, and which samples its slow phases spoilt."""
