"""Estimate whole networks from a table, without a device.

::

    network, cut by the table's rules -> layer_estimates.look_up: an entry, a neighbourhood, or a prediction for each
    layers -> layer_estimates.LayerSum, plus the overhead of the network's sizes -> network_estimate.NetworkEstimate
"""
