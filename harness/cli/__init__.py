"""One module per command; the only place that knows typer and rich."""
