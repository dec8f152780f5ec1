"""The version of the package, and when a process loaded it, apart so that every module may know them."""

import time

VERSION = "0.1.0"
LOADED_S = time.monotonic()
LOADED_NS = time.time_ns()
"""The time on the system's clock; files of the package that changed later hold other code than the one that runs."""
