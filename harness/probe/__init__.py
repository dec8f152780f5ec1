"""Probes: small networks of layers and auxiliary layers, and the plan of all probes of a campaign."""
