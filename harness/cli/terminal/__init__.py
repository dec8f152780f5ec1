"""What commands print: results, tables, errors, and progress while they work."""
