"""Copy the agent to a device by SFTP: named by its content hash, checked, and never overwritten."""

import contextlib
import hashlib
import os
import posixpath
import shlex
from dataclasses import dataclass

import paramiko

from harness.device.bundle import Bundle, build_bundle
from harness.device.inventory import Adb, Device, Ssh
from harness.device.ssh.sftp import BoundedSftp, PrintedText
from harness.device.ssh.ssh_client import SshLink, connect, identity_key, time_limit
from harness.device.ssh.ssh_target import resolve
from harness.device.transport import QUIET_SHELL
from harness.errors import DeviceUnreachable, UsageError
from harness.text import last_part

_CHANNEL_S = 20.0
_PUSH_S = 120.0
_STALE_S = 3600
_DROPPED = ("Server connection dropped", "Socket is closed")
"""What paramiko says of a connection that ended before an answer or before a request; its EOFError says nothing."""


@dataclass(frozen=True)
class Installation:
    """An installed agent, whether it had to be sent, and the authorized_keys line that restricts the identity to it."""

    path: str
    sha256: str
    sent: bool
    authorized_keys_line: str


def install_agent(device: Device) -> Installation:
    """Push the agent to an SSH device; the identity must be allowed to use SFTP there."""
    settings = device.transport
    if isinstance(settings, Adb):
        raise UsageError(f"{device.name} is reached over adb, which copies the agent at each start if it is missing")
    if not isinstance(settings, Ssh):
        raise UsageError(f"{device.name} runs on this machine and needs no installed agent")
    bundle = build_bundle()
    with contextlib.closing(connect(device.name, settings)) as client:
        sent = push_agent(device.name, client, bundle)
    return Installation(bundle.path, bundle.sha256, sent, authorized_keys_line(device.name, settings))


def authorized_keys_line(name: str, settings: Ssh) -> str:
    """Return the authorized_keys line with which this key may start this agent and nothing else."""
    with identity_key(resolve(name, settings)) as key:
        # The shell of the device reads the command. Within its own quotes, sshd knows this escape only.
        command = shlex.join([settings.python, build_bundle().path]).replace('"', '\\"')
        return f'restrict,command="{command}" {key.get_name()} {key.get_base64()}'


def push_agent(name: str, client: SshLink, bundle: Bundle) -> bool:
    """Send the agent unless the device has it, read it back and compare; returns whether it was sent."""

    transport = client.get_transport()
    try:
        with time_limit(client, _PUSH_S):
            channel = transport.open_session(timeout=_CHANNEL_S)
            channel.settimeout(_CHANNEL_S)
            channel.invoke_subsystem("sftp")
            with BoundedSftp(channel) as files:
                sent = not _is_there(files, bundle)
                if sent:
                    _send(files, bundle)
    except (paramiko.SSHException, paramiko.SFTPError, OSError, EOFError, ValueError) as error:
        why = last_part(str(error), 200) or type(error).__name__
        next_step = (
            "If authorized_keys there restricts this key to an agent, put the line of its .pub file back, install, and "
            "restrict it again; otherwise its SSH server may lack SFTP: `Subsystem sftp internal-sftp` in sshd_config"
        )
        if isinstance(error, PrintedText):
            next_step = QUIET_SHELL
        elif isinstance(error, EOFError | ConnectionError) or any(text in why for text in _DROPPED):
            why, next_step = "the connection broke", "Run the same command again; the log of sshd there has the reason"
        elif isinstance(error, TimeoutError):
            why = f"the SFTP server there did not answer within {_CHANNEL_S:g} s"
        elif isinstance(error, OSError):
            why = f"the SFTP server there reports: {why}"
            next_step = "Free space on the disk there, and check that the account may write to its home folder"
        raise DeviceUnreachable(f"The agent cannot be copied to {name}", why=why, next_step=next_step) from None
    return sent


def _is_there(files: paramiko.SFTPClient, bundle: Bundle) -> bool:
    size = len(bundle.content)
    try:
        return files.stat(bundle.path).st_size == size and _remote_hash(files, bundle.path, size) == bundle.sha256
    except FileNotFoundError:
        return False


def _send(files: BoundedSftp, bundle: Bundle) -> None:
    folder = posixpath.dirname(bundle.path)
    for path in (posixpath.dirname(folder), folder):
        try:
            files.mkdir(path, 0o700)
        except OSError:
            files.stat(path)  # there already; otherwise this raises
    part = f"{bundle.path}.{os.urandom(6).hex()}.part"
    try:
        with files.open(part, "wx") as target:
            target.chmod(0o600)
            target.write(bundle.content)
        if _remote_hash(files, part, len(bundle.content)) != bundle.sha256:
            raise OSError("the written file reads back differently")
        now_s = files.stat(part).st_mtime or 0  # by the clock of the device
        files.posix_rename(part, bundle.path)
    except BaseException:
        with contextlib.suppress(OSError, EOFError):  # the first error is the one to report
            files.remove(part)
        raise
    with contextlib.suppress(OSError, paramiko.SFTPError):  # the agent itself is there
        for entry in files.listdir_attr(folder):
            # Left by a link that broke during an earlier push; a present push is younger.
            if entry.filename.endswith(".part") and (entry.st_mtime or now_s) < now_s - _STALE_S:
                files.remove(posixpath.join(folder, entry.filename))


def _remote_hash(files: paramiko.SFTPClient, path: str, size: int) -> str:
    with files.open(path, "rb") as source:
        return hashlib.sha256(source.read(size + 1)).hexdigest()
