"""Measures the table that the package holds of npu01, and writes its report (`make published`).

The table is measured as a user would: `harness profile --device npu01` for the layers of `builtin:common`, the same for
built-in networks, then `harness lut build --device npu01`. Layers of the space are measured alone; those of networks
teach the table how the device chains layers on chip. Beside the table lies what it depends on, so that a test finds out
when it is stale.
"""

import hashlib
import json
import shutil
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

from device_agents.backends import create
from harness import ProfileRequest, SpaceRequest, Workspace, build_lut, profile, profile_request
from harness.device.inventory import BUILT_IN
from harness.lut.table import Lut
from harness.lut.table_choice import PUBLISHED
from harness.measure.progress import Progress
from harness.network.keyed_reading import read_keyed_networks
from harness.network.zoo import NAMES
from harness.report.html import report_networks
from harness.settings import DEFAULT_SPACE, SPACE_COUNT
from harness.space.drawn_layers import even_layers
from harness.space.space import load_space
from harness.validation.network_validation import validate

DEVICE = "npu01"
REQUEST = ProfileRequest(device=DEVICE, space=SpaceRequest(DEFAULT_SPACE))
COMMAND = ("make", "published")
ROOT = Path(__file__).resolve().parents[1]
TABLES = PUBLISHED / DEVICE
VERSIONS = TABLES / "versions.json"
REPORT = ROOT / "reports" / f"{DEVICE}.html"
LINKS = ROOT / "lut" / DEVICE
"""Where readers of the repository look for tables: links to the folders of the package."""
MEASURED = tuple(f"builtin:{name}" for name in ("squeezenet", "resnet50", *NAMES))
"""Networks whose layers the table holds beside those of the space."""
_IN_TABLE, _OTHERS = ("squeezenet", "mobilenetv2", "resnet50"), ("densenet121", "inception_v2")
REPORTED = tuple(f"builtin:{name}" for name in (*_IN_TABLE, *_OTHERS))
"""Networks of the report."""


def current_versions() -> Mapping[str, str]:
    """Return what the table depends on: the emulator's sources, its machine, the layers of the space, and networks."""
    device = BUILT_IN[DEVICE]
    facts = create(device.backend, dict(device.options)).fingerprint()
    space = even_layers(load_space(DEFAULT_SPACE), SPACE_COUNT, REQUEST.seed)
    layers = hashlib.sha256(repr((space, MEASURED)).encode()).hexdigest()[:16]
    return {"emulator": facts["runtime_version"], "settings": facts["settings"], "layers": layers}


def main() -> None:
    """Replace the table of the package, its links and its report."""
    versions = current_versions()
    with tempfile.TemporaryDirectory() as folder:
        workspace = Workspace(Path(folder))
        profile_request(REQUEST, workspace=workspace, observe=_show)
        profile(MEASURED, device=DEVICE, workspace=workspace, observe=_show)
        table = build_lut(DEVICE, workspace=workspace)
        _write_report(table, workspace)
        _replace(table.path)
    VERSIONS.write_text(json.dumps(versions, indent=1) + "\n")
    print(f"{PUBLISHED.relative_to(ROOT) / table.name}  {len(table.entries)} entries")


def _show(progress: Progress) -> None:
    """Print the stage on a terminal, on one line."""
    if sys.stderr.isatty():
        print(f"\r{progress.stage}, {progress.samples:,} samples ".ljust(60), end="", file=sys.stderr)


def _write_report(table: Lut, workspace: Workspace) -> None:
    """Write the table's report, with estimates and latencies of networks that are in it and of others."""
    measured = validate(REPORTED, device=DEVICE, lut=table.path, workspace=workspace)
    report_networks(REPORT, workspace, table, read_keyed_networks(REPORTED, table.rules), COMMAND, measured)


def _replace(table: Path) -> None:
    shutil.rmtree(TABLES, ignore_errors=True)
    shutil.copytree(table, TABLES / table.name)
    LINKS.mkdir(parents=True, exist_ok=True)
    for link in filter(Path.is_symlink, LINKS.iterdir()):
        link.unlink()
    (LINKS / table.name).symlink_to(Path("../..") / TABLES.relative_to(ROOT) / table.name)


if __name__ == "__main__":
    main()
