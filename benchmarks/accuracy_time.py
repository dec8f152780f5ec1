"""The part of docs/accuracy.md about device time: runs until the target, against a fixed number of runs."""

from __future__ import annotations

import functools

from accuracy_devices import Errors, Run, patiently, references, say
from accuracy_page import Reached, Section, percent, signed, table

from harness import build_lut, estimate, profile, validate
from harness.measure.policy import RepeatPolicy

DEVICES = ("npu01", "cpu01")
NETWORKS = ("squeezenet", "mobilenetv2", "resnet18")
FIXED_RUNS = 50
POLICIES = {
    f"until ±{percent(RepeatPolicy().target, 0)}": RepeatPolicy(),
    f"{FIXED_RUNS} runs": RepeatPolicy(runs=FIXED_RUNS),
}


def time_section(run: Run) -> Section:
    """Both policies on the same networks; both judged by the same measurement of the whole networks."""
    names = run.networks if run.quick else NETWORKS
    models = references(names)
    rows: list[tuple[object, ...]] = []
    reached = []
    for device in DEVICES:
        measured_s: dict[str, float] = {}
        seconds = []
        for label, policy in POLICIES.items():
            say(f"time: {device}, {label}")
            place = run.workspace(f"time-{device}-{policy.runs or 'target'}")
            profiled = patiently(
                functools.partial(profile, models, device=device, workspace=place, policy=policy, fresh=True)
            )
            lut = build_lut(device, workspace=place).path
            if not measured_s:
                validation = patiently(functools.partial(validate, models, device=device, lut=lut, workspace=place))
                measured_s = {network.name: network.measured_s for network in validation.networks}
            found = {one.name: one.latency_s for one in estimate(models, lut=lut, workspace=place)}
            known = {name: latency_s for name, latency_s in found.items() if latency_s is not None}
            errors = {name: latency_s / measured_s[name] - 1 for name, latency_s in known.items()}
            seconds.append(profiled.device_seconds)
            rows.append(
                (device, label, f"{profiled.device_seconds:.2f}", f"{profiled.samples:,}",
                 f"{profiled.median_runs:.0f}", *(signed(errors.get(name)) for name in measured_s),
                 percent(Errors(tuple(errors.values())).mean))
            )  # fmt: skip
        until, fixed = seconds
        figure = f"{until:.2f} s against {fixed:.2f} s ({until / fixed:.0%})"
        reached.append(Reached(f"Device time on {device}, against {FIXED_RUNS} runs a probe", figure, None))
    header = ("device", "runs", "device s", "samples", "median runs a probe", *names, "mean absolute")
    return Section(table(header, rows), tuple(reached))
