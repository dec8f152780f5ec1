"""What became slower: a watch campaign after the profile, and tonight compared with earlier nights."""
