"""The packages that harness installs: the lock file and the bill of materials."""
