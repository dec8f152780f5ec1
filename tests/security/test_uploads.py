"""Uploads of the agent: complete under its own name, or not there."""

import shlex

import pytest
from sshd_server import Sshd

from harness.device.bundle import build_bundle
from harness.device.ssh.install import install_agent
from harness.errors import DeviceError

# Files may grow to so many blocks of 512 bytes, a small part of the agent; the kernel ends the server that writes more.
_CUT = '#!/bin/sh\ncd {home} && ulimit -f 100 && exec /bin/sh -c "exec $SSH_ORIGINAL_COMMAND"\n'


def test_upload_that_is_cut_leaves_no_agent(sshd: Sshd) -> None:
    """An interrupted upload leaves nothing under the agent's name and does not affect the next one."""
    script = sshd.folder / "cut.sh"
    script.write_text(_CUT.format(home=shlex.quote(str(sshd.home))))
    script.chmod(0o700)
    sshd.force(str(script))
    target = sshd.home / build_bundle().path
    with pytest.raises(DeviceError):
        install_agent(sshd.device())
    assert target.parent.is_dir() and not target.exists()
    sshd.allow_commands()
    assert install_agent(sshd.device()).sent is True
    assert target.read_bytes() == build_bundle().content
