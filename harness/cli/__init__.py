"""Commands: each parses its options, calls one function and prints. The only package that knows typer and rich."""
