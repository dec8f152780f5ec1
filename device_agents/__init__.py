"""Everything that runs on a device: the agent (a supervisor), its worker process and the backends.

It never imports `harness`. The supervisor needs the standard library only; the worker needs numpy and the runtime
of its backend. Python 3.9 or newer.
"""

AGENT_VERSION = "2.0"
