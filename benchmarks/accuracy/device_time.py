"""The part of docs/accuracy.md about device time: runs until the target is reached, against a fixed number of runs."""

import functools

from benchmarks.accuracy.devices import Errors, Run, patiently, references
from benchmarks.accuracy.page import reached
from benchmarks.generated_page import Section, percent, signed, table
from benchmarks.parts import say
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
    """Profile the same networks with both policies and compare both with one measurement of the whole networks."""
    names = run.networks if run.quick else NETWORKS
    models = references(names)
    rows: list[tuple[object, ...]] = []
    targets = []
    for device in DEVICES:
        measured_s: dict[str, float] = {}
        seconds = []
        for label, policy in POLICIES.items():
            say(f"time: {device}, {label}")
            workspace = run.workspace(f"time-{device}-{policy.runs or 'target'}")
            profiled = patiently(
                functools.partial(profile, models, device=device, workspace=workspace, policy=policy, fresh=True)
            )
            lut = build_lut(device, workspace=workspace).path
            if not measured_s:
                validation = patiently(functools.partial(validate, models, device=device, lut=lut, workspace=workspace))
                measured_s = {network.name: network.measured_s for network in validation.networks}
            found = {one.name: one.latency_s for one in estimate(models, lut=lut, workspace=workspace)}
            known = {name: latency_s for name, latency_s in found.items() if latency_s is not None}
            errors = {name: latency_s / measured_s[name] - 1 for name, latency_s in known.items()}
            seconds.append(profiled.device_seconds)
            cost = (f"{profiled.device_seconds:.2f}", f"{profiled.samples:,}", f"{profiled.median_runs:.0f}")
            mean = percent(Errors(tuple(errors.values())).mean)
            rows.append((device, label, *cost, *(signed(errors.get(name)) for name in measured_s), mean))
        until, fixed = seconds
        figure = f"{until:.2f} s against {fixed:.2f} s ({until / fixed:.0%})"
        targets.append(reached(f"Device time on {device}, against {FIXED_RUNS} runs a probe", figure, None))
    header = ("device", "runs", "device s", "samples", "median runs a probe", *names, "mean absolute")
    return Section(table(header, rows), tuple(targets))
