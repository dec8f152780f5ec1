"""Run ONNX's conformance cases on the emulated NPU, and write the counts to docs/emulator.md.

    python -m benchmarks.emulator.conformance [--print]

Takes about a minute. It ends with an error if a value is wrong.
"""

import argparse
from collections import Counter

from conformance import CONSTANTS, float32_variants
from conformance_on_npu import Outcome, outcome, refusal_table

from benchmarks.generated_page import ROOT, check_blocks, table, with_block
from device_agents.emulated_npu.machine import find_machine

PAGE = ROOT / "docs" / "emulator.md"
BLOCK = "conformance"


def section(outcomes: list[Outcome]) -> str:
    """Return the tables: counts by variant, and refusals by reason."""
    heads = ("variant", "cases", "right", "wrong", "refused")
    rows = []
    for title, constants in (("as ONNX defines them", False), ("with parameters as constants", True)):
        rows.append(_counts(title, [each for each in outcomes if each.name.endswith(CONSTANTS) is constants]))
    rows.append(_counts("both", outcomes))
    reasons = table(("refused for", "variants", "operators or types"), refusal_table(outcomes))
    return f"{table(heads, rows)}\n\n{reasons}"


def _counts(title: str, outcomes: list[Outcome]) -> tuple[object, ...]:
    kinds = Counter(each.kind for each in outcomes)
    return (title, len(outcomes), kinds["right"], kinds["wrong"], kinds["refused"])


def main() -> None:
    """Run all variants, and write or print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--print", action="store_true", help="print the tables instead of writing the page")
    only_print = parser.parse_args().print
    check_blocks(PAGE, [BLOCK])
    machine = find_machine("edge")
    outcomes = [outcome(case, machine) for case in float32_variants()]
    if only_print:
        print(section(outcomes))
    else:
        page = PAGE.read_text(encoding="utf-8")
        PAGE.write_text(with_block(page, BLOCK, section(outcomes)), encoding="utf-8")
    wrong = [each.name for each in outcomes if each.kind == "wrong"]
    if wrong:
        raise SystemExit(f"Wrong values in {', '.join(wrong)}")


if __name__ == "__main__":
    main()
