"""What is installed: pinned versions with hashes, checked by pip, and the bill of materials."""

import json
import os
import re
import subprocess
import sys
import zipfile
from hashlib import sha256
from pathlib import Path

import pytest

from supply_chain.lock_file import canonical, read_lock

ROOT = Path(__file__).resolve().parents[2]
LOCKS = ("requirements.lock", "requirements-fuzz.lock")


@pytest.mark.parametrize("name", LOCKS)
def test_lock_file_is_complete_and_names_no_host(name: str) -> None:
    """Each package of a lock file has the version of constraints.txt and hashes; nothing else is in the file."""
    pinned = dict(
        line.split("==") for line in (ROOT / "constraints.txt").read_text().splitlines() if not line.startswith("#")
    )
    versions = {canonical(name): version for name, version in pinned.items()}
    locked = read_lock(ROOT / name)
    # Only what other platforms need is not in constraints.txt, which lists what the suite was run with.
    assert all(versions.get(one.name, one.marker and one.version) == one.version and one.hashes for one in locked)
    assert "://" not in (ROOT / name).read_text()


@pytest.mark.parametrize(
    "line",
    ["numpy==2.4.6", "--index-url x", "numpy>=2 \\", "file:numpy.whl \\", "-e .", "numpy @ x \\", "    --hash=md5:00"],
)
def test_line_that_would_weaken_the_lock_is_refused(tmp_path: Path, line: str) -> None:
    """Options, addresses, loose versions and packages without hashes are errors of the lock file."""
    good = (ROOT / "requirements-fuzz.lock").read_text()
    (tmp_path / "lock").write_text(f"{good}{line}\n")
    with pytest.raises(ValueError, match="neither a pinned package nor its hash"):
        read_lock(tmp_path / "lock")


def test_everything_is_installed_with_hashes() -> None:
    """Each installation of the Makefile checks hashes, or installs nothing but this checkout; uv is for maintainers."""
    rows = re.findall(r"^\t-?\$\(INSTALL\) (.*)$", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert len(rows) >= 4
    for row in rows:
        own = row == "--no-deps --no-build-isolation --config-settings editable_mode=compat --editable ."
        assert own or row.startswith("--require-hashes ") or row == "--constraint constraints.txt uv"
    assert len(re.findall(r"-m pip install|/pip install", (ROOT / "Makefile").read_text())) == 1


def _wheel(folder: Path, content: str) -> Path:
    path = folder / "locked_example-1.0-py3-none-any.whl"
    facts = {
        "METADATA": "Metadata-Version: 2.1\nName: locked-example\nVersion: 1.0\n",
        "WHEEL": "Wheel-Version: 1.0\nGenerator: x\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        "RECORD": "",
    }
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("locked_example.py", content)
        for name, text in facts.items():
            archive.writestr(f"locked_example-1.0.dist-info/{name}", text)
    return path


def test_changed_package_is_not_installed(tmp_path: Path) -> None:
    """pip installs a package of a lock file, and refuses the same name and version with another content."""
    digest = sha256(_wheel(tmp_path, "honest = True").read_bytes()).hexdigest()
    lock = tmp_path / "requirements.lock"
    lock.write_text(f"locked-example==1.0 \\\n    --hash=sha256:{digest}\n")
    assert [one.name for one in read_lock(lock)] == ["locked-example"]
    words = ["--quiet", "--no-index", "--find-links", str(tmp_path), "--require-hashes", "--requirement", str(lock)]
    command = [sys.executable, "-m", "pip", "install", "--target", str(tmp_path / "into"), *words]
    assert subprocess.run(command, capture_output=True).returncode == 0
    assert (tmp_path / "into" / "locked_example.py").read_text() == "honest = True"
    _wheel(tmp_path, "honest = False")
    refused = subprocess.run([*command, "--upgrade"], capture_output=True, text=True)
    assert refused.returncode != 0 and "HASHES" in refused.stderr.upper()
    assert (tmp_path / "into" / "locked_example.py").read_text() == "honest = True"


def test_bill_of_materials_is_the_lock_file_and_always_the_same(tmp_path: Path) -> None:
    """The bill lists every locked package once with its hashes, and two runs write the same bytes."""
    written = []
    for seed in ("1", "2"):
        target = tmp_path / f"{seed}.json"
        command = [sys.executable, "-m", "supply_chain.sbom", str(target)]
        subprocess.run(command, check=True, capture_output=True, cwd=ROOT, env={**os.environ, "PYTHONHASHSEED": seed})
        written.append(target.read_bytes())
    assert written[0] == written[1]
    bill = json.loads(written[0])
    locked = read_lock(ROOT / LOCKS[0])
    assert [(one["name"], one["version"]) for one in bill["components"]] == [(one.name, one.version) for one in locked]
    hashes = [[item["value"] for item in one["properties"]] for one in bill["components"]]
    assert hashes == [list(one.hashes) for one in locked]
    scopes = {one["name"]: one["scope"] for one in bill["components"]}
    assert (scopes["numpy"], scopes["cffi"], scopes["pytest"]) == ("required", "required", "optional")
    known = {bill["metadata"]["component"]["bom-ref"], *(one["bom-ref"] for one in bill["components"])}
    assert {one["ref"] for one in bill["dependencies"]} == known
    assert all(to in known for one in bill["dependencies"] for to in one["dependsOn"])
