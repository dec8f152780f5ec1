"""Locks on open files that several processes take, and that others look at for milliseconds."""

import fcntl
import math
import time

_WAIT_S, _PAUSE_S = 2.0, 0.01


def take(handle: int, kind: int, moment_s: float, all_pass: bool = False) -> bool:
    """Take an `flock` of this kind, LOCK_EX or LOCK_SH; return whether it is held.

    Those who only look at the lock are waited for, and with `all_pass` all who hold it. Any other holder has `moment_s`
    to end, from when it is met, however long others were waited for before.
    """
    began_s, blocked_s = time.monotonic(), math.inf
    while not _takes(handle, kind):
        is_passing = all_pass or _takes(handle, fcntl.LOCK_SH)  # only those who look leave room for another one
        now_s = time.monotonic()
        blocked_s = math.inf if is_passing else min(blocked_s, now_s)
        if now_s - began_s > _WAIT_S or now_s - blocked_s > moment_s:
            return False
        fcntl.flock(handle, fcntl.LOCK_UN)  # two that kept a shared lock would wait for each other
        time.sleep(_PAUSE_S)
    return True


def _takes(handle: int, kind: int) -> bool:
    try:
        fcntl.flock(handle, kind | fcntl.LOCK_NB)
    except OSError:
        return False
    return True
