"""From measurements of a campaign to layer latencies.

::

    null probes -> overhead_fit.fit_overhead -> Overhead: a, b, c and the terms of auxiliary layers
        plain_overhead.fit_plain_overhead is the literal fit of S1.4, of a, b and c alone
    all probes  -> estimators.estimate_layers, with the Overhead -> a Latency for each layer in its context
        method joint          joint.fit_joint: the overhead is an unknown of one system with all layers
        method chain          layer_latency.slope: copies of a layer, without overhead
        other methods         layer_latency.Combination.latency: subtracts the overhead

`robust` has the weights of outliers that all fits share.
"""
