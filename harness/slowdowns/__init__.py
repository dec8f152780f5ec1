"""Slow-downs: plan and evaluate the watch campaign of a set, and compare nights with earlier nights.

`harness.fleet.watch_campaign` measures what is planned here.
"""
