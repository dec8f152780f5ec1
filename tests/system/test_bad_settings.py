"""Wrong devices and their settings: one error that names the key, and nothing is measured."""

from pathlib import Path

import pytest
from command_line import Harness

SSH = '[devices.board]\ntransport = "ssh"\nhost = "127.0.0.1"\nuser = "u"\nidentity = "key"\n'
NULL = '[devices.n]\nbackend = "null"\n'

SETTINGS = {
    "wrong type": (SSH + 'port = "22"\n', ("port",)),
    "control characters in a key": (NULL + '"a\\u001b[31m" = "x"\n', ()),
    "name with escapes": ('[devices."a\\u001b[31m"]\nbackend = "null"\n', ("name",)),
    "name long": (f"[devices.{'n' * 5000}]\n", ("name",)),
}


@pytest.mark.parametrize("case", SETTINGS)
def test_invalid_devices_file_is_refused(case: str, harness: Harness) -> None:
    """A devices.toml that is not valid ends with exit 3 and names the key, and nothing is written."""
    content, mentions = SETTINGS[case]
    (harness.workspace / "devices.toml").write_text(content)
    before = harness.state()
    harness("devices", "list").assert_refused(3, mentions=mentions)
    assert harness.state() == before


@pytest.mark.parametrize(
    "words",
    [
        ("devices", "list"),
        ("devices", "show", "nobody"),
        ("profile", "--device", "null01", "--runs", "0"),
        ("lut", "build", "--device", "null01"),
        ("frobnicate",),
    ],
    ids=" ".join,
)
def test_outcome_is_that_of_a_process(words: tuple[str, ...], harness: Harness) -> None:
    """A command in a process of its own ends with the same words and exit code as in this process."""
    harness.assert_processes_agree(*words).assert_plain()


@pytest.mark.parametrize(
    "options",
    [
        "c_s = nan",
        "c_s = inf",
        "noise = 1e300",
        'c_s = "much"',
        "frobnicate = 1",
        "seed = 1.5",
        "c_s = -1.0",
        "c_s = true",
    ],
)
def test_invalid_device_options_are_refused(options: str, harness: Harness, small_network: Path) -> None:
    """Options that the backend cannot use end with one error."""
    (harness.workspace / "devices.toml").write_text(f"{NULL}[devices.n.options]\n{options}\n")
    harness("profile", "--device", "n", small_network, "--runs", "2").assert_refused(3, 4)


@pytest.mark.parametrize("threads", ["-1", '"many"', "1000000000", "0.5"])
def test_invalid_thread_counts_are_refused(threads: str, harness: Harness, small_network: Path) -> None:
    """A thread count that no machine has ends with one error."""
    (harness.workspace / "devices.toml").write_text(f"[devices.c]\n[devices.c.options]\nthreads = {threads}\n")
    harness("profile", "--device", "c", small_network, "--runs", "1").assert_refused(3, 4)


def test_devices_file_that_is_no_file_is_refused(harness: Harness) -> None:
    """A folder in place of devices.toml is refused."""
    (harness.workspace / "devices.toml").mkdir()
    harness("devices", "list").assert_refused(3, mentions=("devices.toml",))


def test_devices_file_with_bom_and_crlf_is_read(harness: Harness) -> None:
    """A devices.toml saved by a Windows editor is read."""
    (harness.workspace / "devices.toml").write_bytes(b"\xef\xbb\xbf" + NULL.replace("\n", "\r\n").encode())
    found = harness("devices", "list", "--json").assert_ok().json
    assert {"cpu01", "null01", "n"} <= {device["name"] for device in found["devices"]}


def test_key_that_others_can_read_is_refused(harness: Harness, small_network: Path) -> None:
    """Its own device alone refuses a private key with permissions for others, with the command that mends it."""
    (harness.workspace / "devices.toml").write_text(SSH)
    key = harness.workspace / "key"
    key.write_text("secret material")
    key.chmod(0o644)
    outcome = harness("profile", "--device", "board", small_network).assert_refused(3, mentions=("key", "chmod 600"))
    assert "secret material" not in outcome.stderr
    harness("devices", "check", "null01").assert_ok()


def test_ssh_device_without_key_or_known_host_is_unreachable(harness: Harness, small_network: Path) -> None:
    """An SSH device whose key is missing ends with exit 3 or 4 and a next step."""
    (harness.workspace / "devices.toml").write_text(SSH + "port = 1\n")
    outcome = harness("profile", "--device", "board", small_network)
    outcome.assert_refused(3, 4, mentions=("next:",))


@pytest.mark.parametrize("name", ["nul01", "", "..", "\x1b[31m", "a/b", "n" * 5000, "--", "null01 "])
def test_unknown_device_is_refused(name: str, harness: Harness, small_network: Path) -> None:
    """An unknown device is refused by every command that takes one, and those known are listed or suggested."""
    harness("profile", f"--device={name}", small_network).assert_refused(3, mentions=("null01",))
    harness("devices", "check", "--", name or "x").assert_refused(3)
    assert not (harness.workspace / "lut").exists()


def test_demo_names_an_unknown_device_before_it_begins(harness: Harness) -> None:
    """The demo refuses an unknown device without announcing its first step."""
    outcome = harness("demo", "--device", "nul01").assert_refused(3, mentions=("nul01",))
    assert "profile" not in outcome.stderr


def test_unknown_device_of_tables_is_refused(harness: Harness, small_network: Path) -> None:
    """Commands on tables refuse a device that is neither known nor has a table, without leaving the workspace."""
    for name in ("nul01", "", "../../../etc"):
        harness("estimate", small_network, "--device", name).assert_refused(3)
        harness("lut", "show", "--device", name).assert_refused(3)
        harness("lut", "build", "--device", name).assert_refused(3)
