"""Tables from measurements of other tools: latencies in a CSV file, and a mapping that says what its columns mean."""
