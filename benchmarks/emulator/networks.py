"""Run the built-in networks on the emulated NPU: tables of docs/emulator_figures.md in Markdown.

    python -m benchmarks.emulator.networks [NAME ...]

Each network runs in a process of its own for each way of handling the halo: `harness npu run builtin:NAME --json`.
"""

import argparse

from benchmarks.generated_page import print_head, print_row
from benchmarks.parts import harness_json
from harness.network.model_references import BUILTIN_NAMES

WAYS = {"chains": (), "recomputed": ("--halo", "recompute"), "layer by layer": ("--halo", "refetch")}


def main() -> None:
    """Run the networks and print both tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help="built-in networks; default: all")
    names = parser.parse_args().names or BUILTIN_NAMES
    heads = ("ONNX nodes", "layers", "chains", "passes", "ms", "formula ms", "re-ordering gains", "DDR MB", "error")
    print_head("network", *heads)
    found = {}
    for name in names:
        result = harness_json("npu", "run", f"builtin:{name}", "--compare-reorder")
        found[name] = {"chains": result}
        gain = 1 - result["cycles"] / result["reorder"]["in_order_cycles"]
        print_row(
            name,
            f"{result['onnx_nodes']} ({result['free_nodes']} free)",
            result["hardware_layers"],
            result["chains"],
            result["passes"],
            f"{result['seconds'] * 1e3:.3f}",
            f"{result['formula_cycles'] / result['cycles'] * result['seconds'] * 1e3:.3f}",
            f"{gain:.1%}",
            f"{result['ddr_bytes'] / 1e6:.1f}",
            f"{result['max_rel_error']:.1e}",
        )
    print()
    print_head("network", *(f"{way}: ms, external MB, G MACs, largest error" for way in WAYS))
    for name in names:
        row = []
        for way, options in WAYS.items():
            result = found[name][way] if way in found[name] else harness_json("npu", "run", f"builtin:{name}", *options)
            moved = (result["ddr_bytes"] + result["llc_bytes"]) / 1e6
            row.append(
                f"{result['seconds'] * 1e3:.3f}, {moved:.1f}, {result['macs'] / 1e9:.3f}, {result['max_rel_error']:.1e}"
            )
        print_row(name, *row)


if __name__ == "__main__":
    main()
