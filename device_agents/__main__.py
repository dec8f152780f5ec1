"""`python -m device_agents` is the agent; `python -m device_agents worker FD` is its worker process."""

from __future__ import annotations

import sys
from typing import List, Optional


def main(arguments: Optional[List[str]] = None) -> int:
    """Run the agent on standard input and output, or the worker on an inherited socket."""
    words = sys.argv[1:] if arguments is None else arguments
    if words[:1] == ["worker"]:
        from device_agents.worker import work

        return work(int(words[1]))
    from device_agents.agent import serve

    return serve()


if __name__ == "__main__":
    sys.exit(main())
