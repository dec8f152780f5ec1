"""Split networks over cores: a table of docs/many_cores.md in Markdown.

    python -m benchmarks.many_cores.splits [--networks NAME ...] [--cores N ...]

Each network and number of cores runs in a process of its own: `harness npu split builtin:NAME --cores N`. Exits with 1
if the predicted best is more than 3 % slower than the true best for more than 5 % of the layers.
"""

import argparse
import sys

from benchmarks.generated_page import print_head, print_row
from benchmarks.parts import harness_json

NETWORKS = ("resnet50", "mobilenetv2")
CORES = (2, 4, 8)
WELL_CHOSEN = 0.95
WAYS = ("one", "rows", "outputs", "inputs", "best")


def main() -> int:
    """Run all splits and print the table; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--networks", nargs="+", default=NETWORKS)
    parser.add_argument("--cores", type=int, nargs="+", default=CORES)
    given = parser.parse_args()
    poor = []
    heads = (*(f"{way}: ms predicted / run" for way in WAYS), "layers split", "well chosen", "worst", "tau-b", "took")
    print_head("network, cores", *heads)
    for name in given.networks:
        for cores in given.cores:
            found = harness_json("npu", "split", f"builtin:{name}", "--cores", str(cores))
            per_ms = found["cycles_per_s"] / 1e3
            ways = {one["split"]: one for one in found["networks"]}
            times = [
                f"{ways[way]['predicted_cycles'] / per_ms:.2f} / {ways[way]['cycles'] / per_ms:.2f}" for way in WAYS
            ]
            agreement = found["agreement"]
            if agreement["well_chosen"] < WELL_CHOSEN:
                poor.append(f"{name}, {cores} cores: {agreement['well_chosen']:.1%}")
            print_row(
                f"{name}, {cores}",
                *times,
                f"{ways['best']['split_layers']} of {agreement['layers']}",
                f"{agreement['well_chosen']:.1%}",
                f"{max(layer['excess'] for layer in found['layers']):+.2%}",
                f"{agreement['layer_tau_b']:.3f}, {agreement['network_tau_b']:.3f}",
                f"{found['took_s']:.1f} s",
            )
    for each in poor:
        print(f"fewer than {WELL_CHOSEN:.0%} of the layers are well chosen: {each}", file=sys.stderr)
    return 1 if poor else 0


if __name__ == "__main__":
    sys.exit(main())
