"""The name under which this controller holds a lease."""

from __future__ import annotations

import getpass
import os
import platform


def holder() -> str:
    """Return user, host and process id of this controller as text."""
    return f"{getpass.getuser()}@{platform.node()} pid {os.getpid()}"
