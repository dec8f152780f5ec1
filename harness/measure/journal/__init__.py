"""The journal: an SQLite file of campaigns and their samples; a sample is either committed or it never happened."""
