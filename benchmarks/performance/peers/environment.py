"""Virtual environments for other tools."""

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from benchmarks.parts import say

_INSTALL = ("-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--prefer-binary")
INSTALLING_S = 300.0


def environment_with(root: Path, requirements: Sequence[str]) -> Path:
    """Return the folder of programs of an environment with these packages, made on the first call.

    Raises a SubprocessError if they cannot be installed.
    """
    programs, stamp = root / "bin", root / "installed"
    if not stamp.exists():
        say(f"installing {', '.join(requirements)}")
        subprocess.run([sys.executable, "-m", "venv", str(root)], check=True, timeout=INSTALLING_S)
        command = [str(programs / "python"), *_INSTALL, *requirements]
        subprocess.run(command, check=True, timeout=INSTALLING_S)
        stamp.touch()
    return programs
