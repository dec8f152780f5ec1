"""Run a file and the model sent for it in turn; reads a task as JSON and prints pairs of CPU times in nanoseconds.

Nobody has checked what the file makes a runtime do, so the task states limits on memory and processor time.
"""

from __future__ import annotations

import json
import math
import resource
import statistics
import sys
import time
from typing import Any, List, Mapping, Optional, Sequence, Union

import numpy as np
import onnxruntime

from device_agents import arrays
from device_agents.backends.onnx_bytes import with_packed

MOST = 400
_CLEAR = 6.0
"""Standard errors of a median ratio within which it surely is; a 95 % interval has two."""
_BRIEF_NS = 1_000_000
"""Below this, the first of two runs must follow another one: what happened between pairs has emptied the caches."""
_MAD_TO_STDERR = 1.4826 * math.sqrt(math.pi / 2)


def main() -> None:
    """Print pairs of times (file, sent); the exit code is 1, with the reason, if one of them cannot run."""
    task = json.load(sys.stdin)
    if task["limits"]:
        _limit(*task["limits"])
    made = {spec["name"]: arrays.make(spec) for spec in task["weights"]}
    feeds = [(one["file"], one["spec"]["name"], arrays.make(one["spec"])) for one in task["inputs"]]
    given = {name: np.full(shape, value).astype(dtype) for name, (dtype, shape, value) in task["given"].items()}
    try:
        file = _with_dimensions(task["file"], {name: value.shape for name, _, value in feeds})
        own = {name: value for name, _, value in feeds}
        own.update((one.name, given[one.name]) for one in file.get_inputs() if one.name in given)
        with open(task["sent"], "rb") as content:
            model, made = with_packed(content.read(), made)
        weights = {name: onnxruntime.OrtValue.ortvalue_from_numpy(values) for name, values in made.items()}
        sent = _session(model, weights)
        runs = (file, own), (sent, {name: value for _, name, value in feeds})
        times: List[List[int]] = []
        until_s, fewest = time.monotonic() + task["seconds"], task["fewest"]
        while len(times) <= fewest or (time.monotonic() < until_s and len(times) <= MOST):
            if times and min(times[-1]) < _BRIEF_NS:
                _timed(*runs[-1])
            times.append([_timed(session, values) for session, values in runs])
            if len(times) > fewest and _are_alike(times[1:], task["tolerance"]):
                break
    except Exception as error:  # the runtime's exceptions have no narrower common base
        sys.exit(str(error).splitlines()[0][:300])
    print(json.dumps(times[1:]))  # the first runs allocate memory


def _are_alike(times: Sequence[Sequence[int]], tolerance: float) -> bool:
    """Return whether the pairs show that the ratio of both times is within the tolerance."""
    ratios = [math.log(sent / file) for file, sent in times]
    centre = statistics.median(ratios)
    stderr = _MAD_TO_STDERR * statistics.median(abs(one - centre) for one in ratios) / math.sqrt(len(ratios))
    return abs(centre) + _CLEAR * stderr < math.log1p(tolerance)


def _limit(memory_bytes: int, cpu_s: int) -> None:
    """Limit what this process may still take; the kernel ends it beyond that."""
    used_s = sum(resource.getrusage(resource.RUSAGE_SELF)[:2])
    for kind, limit in (
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_DATA, memory_bytes),
        (resource.RLIMIT_CPU, int(used_s) + cpu_s),
    ):
        _, hard = resource.getrlimit(kind)
        resource.setrlimit(kind, (limit if hard == resource.RLIM_INFINITY else min(limit, hard), hard))


def _with_dimensions(path: str, shapes: Mapping[str, Sequence[int]]) -> Any:
    session = _session(path, {})
    known = {
        name: size
        for one in session.get_inputs()
        for name, size in zip(one.shape, shapes.get(one.name, ()), strict=False)
        if isinstance(name, str)
    }
    return _session(path, {}, known) if known else session


def _session(
    model: Union[str, bytes], weights: Mapping[str, Any], dimensions: Optional[Mapping[str, int]] = None
) -> Any:
    options = onnxruntime.SessionOptions()
    for name, size in (dimensions or {}).items():
        options.add_free_dimension_override_by_name(name, size)
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.log_severity_level = 4
    if weights:
        options.add_external_initializers(list(weights), list(weights.values()))
    return onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])


def _timed(session: Any, values: Mapping[str, Any]) -> int:
    start_ns = time.thread_time_ns()
    session.run(None, values)
    return max(1, time.thread_time_ns() - start_ns)


if __name__ == "__main__":
    main()
