"""Probes: small networks of layers and auxiliary layers, and the plan of all probes of a campaign.

::

    layers of a network -> probe_plan.plan_probes -> probes of each layer: by itself, in context, without it, in stacks
    sizes               -> calibration            -> null probes, from which the overhead is fitted
    chains of a device  -> chain_plan             -> windows of neighbouring layers, made by window_probes
"""
