"""Slow-downs: plan the watch campaign of a set, and compare nights with earlier nights.

::

    profile campaign -> profile_summary -> watch_plan -> harness.fleet.watch_campaign measures -> watch_series
    watch_series of several nights -> adjustment (host, device) -> night_scatter, night_tracks -> verdicts -> findings
"""
