"""Measure one device: profiling campaigns, the journal of samples, fusion found by probes, journals of other hosts.

::

    request -> profiling.profile_networks -> fusion.cutting (layers) -> plan of probes
    plan    -> campaign.CampaignRun       -> device_requests (visits) -> samples in `journal`
    samples -> noise (which are quiet)    -> summary.summarise        -> Measurement of each probe
"""
