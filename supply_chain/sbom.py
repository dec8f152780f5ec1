"""`make sbom`: write the bill of materials as CycloneDX 1.6. The same lock file and packages give the same bytes."""

from __future__ import annotations

import json
import sys
import tomllib
import uuid
from collections.abc import Iterable, Mapping
from importlib import metadata
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement

from harness.version import VERSION
from supply_chain.lock_file import LockedPackage, canonical, read_lock

ROOT = Path(__file__).resolve().parents[1]
_NAMESPACE = uuid.UUID("6f1d3c9e-6f0b-5b3e-9a55-3f1c1f0c4f57")
_OWN = f"pkg:generic/harness@{VERSION}"


def bill_of_materials(locked: Iterable[LockedPackage], runtime: Iterable[str]) -> dict[str, Any]:
    """Return the bill for locked packages; those reachable from the `runtime` requirements are required.

    Licences and dependencies are those of the installed packages. One that is not installed here, because another
    platform needs it, has neither.
    """
    packages = {one.name: one for one in locked}
    edges = {name: sorted(_needed(name) & packages.keys()) for name in packages}
    direct = sorted({canonical(Requirement(text).name) for text in runtime} & packages.keys())
    required = _reachable(direct, edges)
    components = [_component(one, is_required=one.name in required) for one in packages.values()]
    graph = [{"ref": _OWN, "dependsOn": [_url(packages[name]) for name in direct]}]
    graph += [{"ref": _url(packages[name]), "dependsOn": [_url(packages[to]) for to in edges[name]]} for name in edges]
    body = {
        "metadata": {"component": {"type": "application", "bom-ref": _OWN, "name": "harness", "version": VERSION}},
        "components": components,
        "dependencies": graph,
    }
    serial = uuid.uuid5(_NAMESPACE, json.dumps(body, sort_keys=True))
    return {"bomFormat": "CycloneDX", "specVersion": "1.6", "serialNumber": f"urn:uuid:{serial}", "version": 1, **body}


def _url(package: LockedPackage) -> str:
    return f"pkg:pypi/{package.name}@{package.version}"


def _component(package: LockedPackage, *, is_required: bool) -> dict[str, Any]:
    component: dict[str, Any] = {
        "type": "library",
        "bom-ref": _url(package),
        "name": package.name,
        "version": package.version,
        "scope": "required" if is_required else "optional",
        "purl": _url(package),
    }
    if licence := _licence(package.name):
        component["licenses"] = [licence]
    # Each hash is that of one file of the package: a wheel for some platform, or the sources.
    component["properties"] = [{"name": "harness:file:sha256", "value": one} for one in package.hashes]
    return component


def _licence(name: str) -> dict[str, Any] | None:
    try:
        facts: Any = metadata.metadata(name)
    except metadata.PackageNotFoundError:
        return None
    if expression := facts.get("License-Expression"):
        return {"expression": expression}
    classified = [text for text in facts.get_all("Classifier") or [] if text.startswith("License ::")]
    named = classified[0].rpartition(" :: ")[2] if classified else (facts.get("License") or "").strip().split("\n")[0]
    return {"license": {"name": named[:200]}} if named else None


def _needed(name: str) -> set[str]:
    try:
        requirements = [Requirement(text) for text in metadata.requires(name) or []]
    except metadata.PackageNotFoundError:
        return set()
    return {canonical(one.name) for one in requirements if one.marker is None or one.marker.evaluate({"extra": ""})}


def _reachable(names: Iterable[str], edges: Mapping[str, Iterable[str]]) -> set[str]:
    found: set[str] = set()
    waiting = list(names)
    while waiting:
        name = waiting.pop()
        if name not in found:
            found.add(name)
            waiting += edges[name]
    return found


def main(target: Path) -> None:
    """Write the bill of this checkout's lock file to `target`."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    bill = bill_of_materials(read_lock(ROOT / "requirements.lock"), project["dependencies"])
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(json.dumps(bill, indent=1) + "\n", encoding="utf-8")
    print(f"{target}  {len(bill['components'])} packages")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
