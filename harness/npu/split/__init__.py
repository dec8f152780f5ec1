"""Ways to split layers over cores: compared as predicted and as they run."""
