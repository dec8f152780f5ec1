"""Devices and how to reach them.

::

    devices.toml -> inventory.Device -> session.open_session -> AgentSession
    AgentSession -> link (requests, deadlines, heartbeats) -> local, adb or ssh (bytes) -> the agent on the device
    answer of the agent -> replies (checked) -> samples
"""
