"""devices.toml: the settings that it accepts, and the errors for others."""

from pathlib import Path

import pytest

from harness.device.inventory import BUILT_IN, Local, Ssh, find_device, load_inventory
from harness.device.ssh.ssh_config import SshConfig
from harness.errors import ConfigurationError, UnknownDevice

BOARD = """
[devices.board]
transport = "ssh"
host = "board.lab"
user = "harness"
identity = "keys/board"
"""


def _write(folder: Path, text: str) -> Path:
    path = folder / "devices.toml"
    path.write_text(text)
    return path


def test_built_in_devices_need_no_file(tmp_path: Path) -> None:
    """Without devices.toml there are the emulated NPU, with and without reports, two CPU runtimes, and null01."""
    for path in (None, tmp_path / "devices.toml"):
        inventory = load_inventory(path)
        assert sorted(inventory) == ["cpu-openvino", "cpu01", "npu01", "npu01-blind", "null01"]
    assert (inventory["cpu01"].backend, inventory["cpu01"].resource) == ("onnxruntime", "cpu")
    assert (inventory["cpu-openvino"].backend, inventory["cpu-openvino"].resource) == ("openvino", "cpu")
    assert (inventory["null01"].backend, inventory["null01"].resource) == ("null", "null01")
    for name in ("npu01", "npu01-blind"):
        assert (inventory[name].backend, inventory[name].resource) == ("emulated-npu", name)
    assert isinstance(inventory["cpu01"].transport, Local)


def test_paths_are_relative_to_the_file(tmp_path: Path) -> None:
    """Relative paths of key and known_hosts start at the folder of devices.toml, wherever the command runs."""
    device = load_inventory(_write(tmp_path, BOARD))["board"]
    assert isinstance(device.transport, Ssh)
    assert device.transport.identity == tmp_path / "keys" / "board"
    assert device.transport.known_hosts == tmp_path / "known_hosts"
    assert device.transport.ssh_config == Path("~/.ssh/config").expanduser()
    assert (device.transport.port, device.transport.agent, device.resource) == (None, "forced", "cpu")


def test_a_user_without_home_needs_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a home folder no file of OpenSSH is read, unless the inventory names one there."""
    monkeypatch.delenv("HOME")
    monkeypatch.setattr("pwd.getpwuid", lambda number: {}[number])
    lines = '[devices.b]\ntransport = "ssh"\nhost = "127.0.0.1"\nport = 22\nuser = "me"\nidentity = "key"\n'
    (tmp_path / "devices.toml").write_text(lines)
    transport = load_inventory(tmp_path / "devices.toml")["b"].transport
    assert isinstance(transport, Ssh) and transport.ssh_config is None
    assert SshConfig(None).lookup("alias").host == "alias"
    (tmp_path / "devices.toml").write_text(lines + 'ssh_config = "~/.ssh/config"\n')
    with pytest.raises(ConfigurationError, match="ssh_config is not a path"):
        load_inventory(tmp_path / "devices.toml")
    (tmp_path / "config").write_text("Include ~nobody-of-this-name/config\n")
    with pytest.raises(ConfigurationError, match="no home folder"):
        SshConfig(tmp_path / "config")


def test_options_and_resource_are_taken(tmp_path: Path) -> None:
    """Options of the backend keep their types; a resource can be named."""
    text = '[devices.x]\nbackend = "null"\nresource = "bench"\n[devices.x.options]\nseed = 3\nnoise = 0.5\n'
    device = load_inventory(_write(tmp_path, text + "allow_fallback = true\nprovider_options = {a = '1', b = 2}\n"))[
        "x"
    ]
    kept = {"seed": 3, "noise": 0.5, "allow_fallback": True, "provider_options": {"a": "1", "b": 2}}
    assert (dict(device.options), device.resource) == (kept, "bench")


def test_emulated_devices_occupy_only_themselves(tmp_path: Path) -> None:
    """Emulated devices do not exclude each other."""
    for backend in ("null", "emulated-npu"):
        assert load_inventory(_write(tmp_path, f'[devices.n2]\nbackend = "{backend}"\n'))["n2"].resource == "n2"


def test_real_devices_are_exclusive_and_emulated_ones_on_request(tmp_path: Path) -> None:
    """A device with the clock of its machine is always leased; an emulated one only if devices.toml says so."""
    assert {name for name, device in load_inventory(None).items() if device.exclusive} == {"cpu01", "cpu-openvino"}
    for backend, given, exclusive in (("null", "", False), ("null", "exclusive = true\n", True), ("command", "", True)):
        path = _write(tmp_path, f'[devices.x]\nbackend = "{backend}"\n{given}')
        assert load_inventory(path)["x"].exclusive is exclusive


@pytest.mark.parametrize(
    ("text", "named"),
    [
        (BOARD + "prot = 2222\n", r"devices\.board\.prot is unknown\. Did you mean port"),
        (BOARD + "port = 70000\n", r"devices\.board\.port .*65535"),
        *((BOARD + f"port = {port}\n", r"devices\.board\.port") for port in ("0", "true", "[22]")),
        (BOARD + 'port = "22"\n', r"devices\.board\.port"),
        (BOARD + BOARD, "not valid TOML.*twice"),
        (BOARD + 'host = "a"\n', "not valid TOML"),
        *(
            (BOARD + f"connect_timeout_s = {time}\n", r"devices\.board\.connect_timeout_s")
            for time in ("inf", "nan", "-1.0")
        ),
        *((BOARD.replace("board.lab", host), r"devices\.board\.host") for host in ("-oProxyCommand=x", "")),
        (BOARD.replace('host = "board.lab"\n', ""), r"devices\.board\.host is missing"),
        *(
            (BOARD + f"proxy_jump = {jump!r}\n", r"devices\.board\.proxy_jump")
            for jump in ("a gate", "-oProxyCommand=x")
        ),
        (BOARD + "key_agent = true\n", r"devices\.board\.key_agent"),
        (BOARD.replace('"ssh"', '"telnet"'), r"devices\.board\.transport is 'telnet'"),
        (BOARD.replace('"ssh"', "[]"), r"devices\.board\.transport"),
        (BOARD + "options = 3\n", r"devices\.board\.options"),
        (BOARD + "[devices.board.options]\nthreads = 2026-01-01\n", r"devices\.board\.options\.threads"),
        (BOARD + "[devices.board.options]\nthreads = [1]\n", r"devices\.board\.options\.threads"),
        (BOARD + 'backend = "abacus"\n', r"devices\.board\.backend"),
        (BOARD + 'resource = "../x"\n', r"devices\.board\.resource"),
        (BOARD + "exclusive = false\n", r"devices\.board\.exclusive must be true: another measurement"),
        ('[devices.x]\ntransport = "adb"\n', r"devices\.x\.serial is missing"),
        ('[devices.x]\ntransport = "adb"\nserial = "-a"\n', r"devices\.x\.serial must be text"),
        ('[devices.x]\ntransport = "adb"\nserial = "a"\nfolder = "tmp"\n', r"devices\.x\.folder"),
        ('[devices.x]\nserial = "a"\n', r'devices\.x\.serial is unknown for this transport\. Add transport = "adb"'),
        ('[devices.x]\nhost = "a"\n', r"devices\.x\.host is unknown for this transport\. Add transport"),
        *(
            (f'[devices."{name}"]\n', "is not a device name")
            for name in ("a/b", "..", ".", ".writing-n", "--debug", "")
        ),
        ('[devices."a\\u001b[31m"]\n', r"devices\.'a\\x1b\[31m' is not a device name"),
        ("[devices.cpu01]\n", r"devices\.cpu01 is the name of a built-in device"),
        ("[device.x]\n", "device is unknown"),
        ("devices = 3\n", "devices is not a table"),
        ("[devices]\nx = 3\n", r"devices\.x is not a table"),
        ("[devices.x\n", "not valid TOML"),
    ],
)
def test_wrong_file_is_reported_with_file_and_key(tmp_path: Path, text: str, named: str) -> None:
    """Each error gives the file, the key and the reason."""
    path = _write(tmp_path, text)
    with pytest.raises(ConfigurationError, match=named) as caught:
        load_inventory(path)
    assert str(path) in str(caught.value) and caught.value.exit_code == 3


def test_binary_file_is_reported(tmp_path: Path) -> None:
    """A binary file is an error, not a traceback."""
    path = tmp_path / "devices.toml"
    path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ConfigurationError):
        load_inventory(path)


def test_unknown_device_lists_near_names() -> None:
    """A misspelt name gets a suggestion."""
    with pytest.raises(UnknownDevice, match="Did you mean cpu01"):
        find_device(BUILT_IN, "cpu1")
    with pytest.raises(UnknownDevice, match="Known devices: cpu-openvino, cpu01, npu01, npu01-blind, null01"):
        find_device(BUILT_IN, "xyz\x1b")
    assert find_device(BUILT_IN, "cpu01").name == "cpu01"


def test_a_file_that_leads_nowhere_is_not_a_missing_one(tmp_path: Path) -> None:
    """A link to itself or to nothing is refused: without it, a lab would go on with the built-in devices."""
    for target in ("devices.toml", "absent.toml"):
        path = tmp_path / "devices.toml"
        path.symlink_to(target)
        with pytest.raises(ConfigurationError, match="cannot be read"):
            load_inventory(path)
        path.unlink()


def test_the_number_of_devices_is_bounded(tmp_path: Path) -> None:
    """A file of very many devices is refused with the largest number."""
    path = _write(tmp_path, "".join(f'[devices.d{number}]\nbackend = "null"\n' for number in range(2001)))
    with pytest.raises(ConfigurationError, match="the limit is 2,000"):
        load_inventory(path)
