"""SSH servers that attack the host: every read and write ends, takes little memory, and is an error of the device."""

import time
from collections.abc import Iterator

import pytest
from hostile_sshd import AGENT, RAW, SETUP, SFTP, hostile_sshds, little_memory
from sshd_server import Sshd

from harness.device import link, transport
from harness.device.inventory import Device
from harness.device.session import AgentSession, Deadlines, start_agent
from harness.device.ssh import install, ssh_connection, ssh_transport
from harness.device.ssh.install import install_agent
from harness.errors import DeviceError, DeviceUnreachable

BOUND_BYTES = 48 << 20
HASTE = {
    "banner_that_drips": {"connect_timeout_s": 0.3, "banner_timeout_s": 1.0},
    "keys_that_drip": {"connect_timeout_s": 0.3, "banner_timeout_s": 1.0},
    "authentication_that_does_not_answer": {"auth_timeout_s": 0.3},
}

pytestmark = pytest.mark.timeout(900)


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Sshd]]:
    """Return a hostile server for each case."""
    with hostile_sshds(tmp_path_factory.mktemp("hostile") / "servers") as found:
        yield found


@pytest.fixture(autouse=True)
def haste(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make all deadlines short, and the budget of errors one that is reached soon."""
    monkeypatch.setattr(ssh_transport, "_WRITE_S", 0.5)
    monkeypatch.setattr(ssh_transport, "_REKEY_S", 0.5)
    monkeypatch.setattr(ssh_connection, "CLOSE_S", 0.5)
    monkeypatch.setattr(link, "CLOSE_S", 0.5)
    monkeypatch.setattr(link, "SEND_STALL_S", 0.5)
    monkeypatch.setattr(transport, "ERROR_BYTES", 1 << 20)


def _greet(device: Device, start_s: float) -> None:
    with AgentSession(start_agent(device), device, Deadlines(start_s=start_s)) as session:
        session.greet()


SAYS = {
    "banner_without_end": "banner: it sent 1 MiB before",
    "banner_of_many_lines": "Indecipherable",
    "banner_that_drips": "does not speak SSH",
    "packet_of_four_gigabytes": "packet of 4294967280 bytes",
    "packets_before_the_keys": "sent 1 MiB before",
    "keys_that_drip": "does not speak SSH",
    "banners_of_authentication": "sent 1 MiB before",
    "extensions_without_end": "announced 4294967295 extensions",
    "authentication_that_does_not_answer": "Authentication timeout",
    "data_beyond_the_window": "more than the window",
    "errors_beyond_the_window": "more than the window|does not stop writing",
    "errors_without_end": "more than 1 MiB to its standard error",
    "unknown_stream": "unknown kind 7",
    "debug_messages_without_end": "messages that carry no data",
    "requests_without_end": "did not take a packet within|no hello",
    "keys_that_never_change": "key negotiation|no hello",
    "takes_single_bytes": "hello could not be sent: the agent took [0-9]+ bytes within 0.5 s",
}


@pytest.mark.parametrize("case", SAYS)
def test_a_hostile_server_is_left_with_the_reason(servers: dict[str, Sshd], case: str) -> None:
    """Whatever a server does from its banner to the first answer of an agent, the host ends, and says why."""
    assert case in {**RAW, **SETUP, **AGENT}
    with little_memory(BOUND_BYTES), pytest.raises(DeviceError, match=SAYS[case]) as refused:
        _greet(servers[case].device(**HASTE.get(case, {})), 1.0 if "no hello" in SAYS[case] else 30.0)
    assert refused.value.exit_code == 4 and refused.value.fault in ("device", "link")


def test_all_attacks_of_the_server_are_tested() -> None:
    """No attack is left out."""
    closing = {"ends_with_errors", "ends_with_output", "reads_nothing"}
    assert set(SAYS) | closing == {*RAW, *SETUP, *AGENT}


@pytest.mark.parametrize("case", ["ends_with_errors", "ends_with_output"])
def test_closing_has_an_end(servers: dict[str, Sshd], case: str) -> None:
    """A device that begins to write when the session ends is not read to its end."""
    with little_memory(BOUND_BYTES):
        start_agent(servers[case].device()).close()


def test_a_server_that_reads_nothing_is_left(servers: dict[str, Sshd]) -> None:
    """Bytes that nobody takes are an error, and closing afterwards has an end, too."""
    data = b"x" * (64 << 20)
    with little_memory(BOUND_BYTES):
        connection = start_agent(servers["reads_nothing"].device())
        with pytest.raises(OSError, match=r"did not take a packet within 0.5 s"):
            connection.send(data, 60.0)
        connection.close()


def test_a_new_exchange_of_keys_has_an_end(servers: dict[str, Sshd]) -> None:
    """What is sent while a server does not complete its own exchange of keys is an error."""
    connection = start_agent(servers["keys_that_never_change"].device())
    with pytest.raises(OSError, match="key negotiation"):
        while True:
            connection.send(b"x", 60.0)
            time.sleep(0.01)
    connection.close()


@pytest.mark.parametrize("case", SFTP)
def test_copying_the_agent_to_a_hostile_server_has_an_end(
    servers: dict[str, Sshd], case: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server of SFTP that stalls, drips, floods or lies about counts costs an error, and little memory."""
    if case in ("sftp_that_drips", "sftp_that_says_nothing"):
        monkeypatch.setattr(install, "_PUSH_S", 0.5)
    with little_memory(BOUND_BYTES):
        if case == "folder_without_end":  # the agent is there, and what else lies in its folder does not matter
            assert install_agent(servers[case].device()).sent
        else:
            with pytest.raises(DeviceUnreachable, match="cannot be copied"):
                install_agent(servers[case].device())
