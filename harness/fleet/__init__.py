"""Run profiling requests on one device or many: lease, golden probe, campaign, retries, device health, engines.

`harness.profile` is here (`profile`): the command line, Python, nights and clusters all use it.
"""
