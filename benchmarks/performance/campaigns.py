"""What harness adds to a campaign, and campaigns beside the time on their device: parts of docs/performance.md."""

import contextlib
import getpass
import shutil
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from unittest import mock

from benchmarks.generated_page import Section, table
from benchmarks.performance.measuring import Run, Took, spread, timed
from benchmarks.performance.page import reached
from harness import cache, profile
from harness.device.inventory import BUILT_IN
from harness.device.session import open_session
from harness.measure.device_run import leased_run
from harness.measure.journal.journal import Journal
from harness.measure.policy import RepeatPolicy
from harness.measure.profiling import ProfileResult, profile_networks
from harness.measure.request import ProfileRequest
from harness.workspace import Workspace

MODEL, QUICK_MODEL = "builtin:resnet50", "builtin:dscnn"
CPU_MODELS, QUICK_CPU_MODELS = ("builtin:squeezenet", "builtin:mobilenetv2"), ("builtin:dscnn",)
FEW, MANY, SHOWN = 5, 45, 10
"""Rounds of campaigns."""
MOST_CAMPAIGNS = 2
"""Campaigns of each kind on `cpu01` and `board`: one takes ten seconds or more."""


@dataclass(frozen=True)
class Campaign:
    """A campaign and its times."""

    result: ProfileResult
    took: Took

    @property
    def device_share(self) -> float:
        """The part of the wall time that the device measured."""
        return self.result.device_seconds / self.took.wall_s


def overhead_section(run: Run) -> Section:
    """Run campaigns with few and with many rounds on the device `null01`, and one on `cpu01`."""
    model = QUICK_MODEL if run.quick else MODEL
    pairs = [tuple(_bare(run, "null01", model, runs) for runs in (FEW, MANY)) for _ in range(run.repeats)]
    rows = []
    for label, field in (("wall", "wall_s"), ("CPU", "cpu_s")):
        per_sample = [
            (getattr(many.took, field) - getattr(few.took, field)) / (many.result.samples - few.result.samples)
            for few, many in pairs
        ]
        per_probe = [
            (getattr(few.took, field) - slope * few.result.samples) / few.result.probes
            for (few, _), slope in zip(pairs, per_sample, strict=True)
        ]
        rows.append((label, spread(per_sample, 1e6), spread(per_probe, 1e3)))
    real = [_bare(run, "cpu01", model, SHOWN) for _ in range(run.repeats)]
    share = statistics.median(one.device_share for one in real)
    text = (
        f"Campaigns over {model} ({real[0].result.probes} probes) on `null01`, whose runs take no time, with {FEW} and "
        f"{MANY} rounds: medians and ranges of {run.repeats}, for controller, agent, worker and journal together.\n\n"
        f"{table(('', 'µs per sample', 'ms per probe (start, planning, loading)'), rows)}\n\nOn `cpu01`, the same plan "
        f"with {SHOWN} rounds spends {share:.0%} of the time on the device; most of the rest is loading."
    )
    added = reached("CPU time that harness adds to a sample", f"{rows[1][1]} µs", None)
    return Section(text, (added,))


def _bare(run: Run, device: str, model: str, runs: int) -> Campaign:
    """Run a campaign without golden probes, in a new workspace."""
    request, results = ProfileRequest(device, (model,), policy=RepeatPolicy(runs=runs)), []

    def task() -> None:
        networks, known, journal_file = request.networks(), BUILT_IN[device], _new_workspace(run).journal
        with (
            open_session(known) as session,
            Journal(journal_file) as journal,
            leased_run(session, known, journal) as opened,
        ):
            results.append(profile_networks(opened, networks, request).result)

    took = timed(task)
    return Campaign(results[0], took)


def campaigns_section(run: Run) -> Section:
    """Run campaigns on `cpu01`, on the same machine behind sshd, and on `npu01` with and without compiled probes."""
    models = QUICK_CPU_MODELS if run.quick else CPU_MODELS
    found: dict[str, list[Campaign]] = {}
    with board(run) as devices:
        for _ in range(min(run.repeats, MOST_CAMPAIGNS)):
            for device in ("cpu01", "board") if devices else ("cpu01",):
                for label, share in (("probes stay loaded", None), ("probes loaded for each pass", 0.0)):
                    campaign = profiled(run, device, models, devices, share)
                    found.setdefault(f"`{device}`, {label}", []).append(campaign)
    model = QUICK_MODEL if run.quick else MODEL
    with mock.patch.dict("os.environ", **{cache.VARIABLE: str(run.folder("npu-cache"))}):
        for label in ("nothing compiled before", "everything compiled before"):
            found[f"`npu01`, {label}"] = [profiled(run, "npu01", (model,))]
    rows = [
        (
            label,
            len(runs),
            runs[0].result.probes,
            spread([one.took.cpu_s for one in runs]),
            spread([one.took.wall_s for one in runs]),
            spread([one.took.wall_s / one.result.device_seconds for one in runs]),
        )
        for label, runs in found.items()
    ]
    kept, loaded = (found[f"`cpu01`, probes {label}"] for label in ("stay loaded", "loaded for each pass"))
    ratio = statistics.median(one.took.cpu_s / other.took.cpu_s for one, other in zip(kept, loaded, strict=True))
    share = statistics.median(one.device_share for one in kept)
    header = ("campaign", "runs", "probes", "CPU s", "wall s", "wall over device time")
    text = (
        f"`harness profile` of {', '.join(models)} in turns; `board` is this machine behind an sshd on loopback, whose "
        f"agent's CPU time does not count. On `npu01`, of {model}.\n\n{table(header, rows)}"
    )
    return Section(
        text,
        (
            reached("time on the device, of a campaign on `cpu01`", f"{share:.0%}", None),
            reached("probes that stay loaded, over probes loaded for each pass", f"{ratio:.2f} of the CPU time", None),
        ),
    )


def profiled(run: Run, device: str, models: Sequence[str], devices: str = "", share: float | None = None) -> Campaign:
    """Profile in a new workspace; `share` is the part of the memory that loaded probes may keep."""
    keeping = contextlib.nullcontext() if share is None else mock.patch("harness.measure.loaded_probes._SHARE", share)
    workspace, results = _new_workspace(run), []
    workspace.devices.write_text(devices)
    with keeping:
        took = timed(lambda: results.append(profile(models, device=device, workspace=workspace)))
    return Campaign(results[0], took)


def _new_workspace(run: Run) -> Workspace:
    folder = run.folder("campaign")
    shutil.rmtree(folder)
    folder.mkdir()
    return Workspace(folder)


@contextlib.contextmanager
def board(run: Run) -> Iterator[str]:
    """A devices.toml with an sshd on loopback as `board`; empty if this machine has no sshd."""
    from sshd_server import running_sshd

    if shutil.which("sshd", path="/usr/sbin:/usr/local/sbin:/usr/bin") is None:
        yield ""
        return
    leases = run.folder("board") / "leases"
    leases.mkdir(mode=0o700, exist_ok=True)
    with running_sshd(run.folder("board") / "sshd", leases) as sshd:
        yield (
            f'[devices.board]\ntransport = "ssh"\nhost = "127.0.0.1"\nport = {sshd.port}\n'
            f'user = "{getpass.getuser()}"\nidentity = "{sshd.identity}"\nknown_hosts = "{sshd.known_hosts}"\n'
            "[devices.board.options]\nthreads = 1\n"
        )
