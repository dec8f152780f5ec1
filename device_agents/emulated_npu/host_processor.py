"""The processor that drives the NPU: the latency of an inference outside the NPU's own work, on a virtual clock.

Every inference is one submission: the host preprocesses the inputs, its driver starts a transfer into the NPU's
memory, the NPU runs, and the host transfers the output back and postprocesses it.
"""

from __future__ import annotations

import math
import random

from device_agents.emulated_npu.machine import Host


class HostModel:
    """Total latencies of consecutive inferences. The model never sleeps; equal seeds give equal latencies.

    Disturbances, by the fields of `Noise`:

    - Jitter (log-normal of median 1) and drift (a sine of a random phase) multiply the host's part, which is software
      on a general processor; the NPU counts cycles of a fixed clock.
    - A spike adds an exponentially distributed time, as if another program had used the processor.
    - Throttling multiplies the total, NPU included: both share one heat sink.
    """

    def __init__(self, host: Host, seed: int) -> None:
        self._host = host
        self._random = random.Random(seed)  # noqa: S311 - noise, no secret
        self._phase = self._random.uniform(0.0, 2 * math.pi)
        self.now_s = 0.0

    def true_overhead(self) -> tuple[float, float, float]:
        """Return a and b in seconds per input and output byte, and c in seconds: preprocessing, driver, transfers."""
        per_byte_s = 1 / self._host.dma_bytes_per_s
        return (
            self._host.preprocess_s_per_byte + per_byte_s,
            self._host.postprocess_s_per_byte + per_byte_s,
            self._host.driver_s + 2 * self._host.dma_setup_s,
        )

    def run(self, input_bytes: int, output_bytes: int, npu_s: float) -> float:
        """Return the seconds from handing over the input arrays to getting the output arrays, and advance the clock."""
        a_s_per_byte, b_s_per_byte, c_s = self.true_overhead()
        noise = self._host.noise
        drift = 1 + noise.drift * math.sin(2 * math.pi * self.now_s / noise.drift_period_s + self._phase)
        host_s = a_s_per_byte * input_bytes + b_s_per_byte * output_bytes + c_s
        host_s *= self._random.lognormvariate(0.0, noise.jitter) * drift
        # The clock counts busy time only: idle time between runs takes no virtual time.
        slowdown = noise.throttle_slowdown if self.now_s >= noise.throttle_after_s else 1.0
        # Always draw both numbers, so that one parameter does not shift the later draws.
        is_struck = self._random.random() < noise.spike_probability
        spike_s = self._random.expovariate(1.0) * noise.spike_s
        total_s = (host_s + npu_s) * slowdown + (spike_s if is_struck else 0.0)
        self.now_s += total_s
        return total_s
