"""What became slower: series of tonight against those of earlier nights."""
