"""Who we are, for whoever finds a device taken."""

from __future__ import annotations

import getpass
import os
import platform


def holder() -> str:
    """User, host and process of this controller, in words."""
    return f"{getpass.getuser()}@{platform.node()} pid {os.getpid()}"
