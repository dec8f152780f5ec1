"""Everything that runs on a device: the agent (supervisor), its worker process and the backends.

Never imports `harness`. The supervisor and the wire need the standard library alone; the worker needs
numpy and the runtime of its backend. Python 3.9 or newer.
"""

AGENT_VERSION = "2.0"
