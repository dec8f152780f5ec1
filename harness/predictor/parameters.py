"""Everything of a predictor that is not a tree, as JSON in the metadata of its ONNX file."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from harness.predictor.coverage import Coverage, Hull
from harness.predictor.intervals import Calibration
from harness.predictor.roofline import Roofline
from harness.predictor.steps import Steps

METADATA_KEY = "harness.predictor"
_VERSION = 2


@dataclass(frozen=True)
class Parameters:
    """How features, coverage and intervals of a predictor are computed; `shares` is that of `shares_of`."""

    roofline: Roofline
    hull: Hull
    calibration: Calibration
    shares: Mapping[str, float]


def text_of(parameters: Parameters) -> str:
    """One line of JSON; floats come back to the last bit."""
    roofline, hull, calibration = parameters.roofline, parameters.hull, parameters.calibration
    steps = roofline.steps
    content = {
        "schema_version": _VERSION,
        "steps": {"units": steps.units, "depth": steps.depth, "channels": steps.channels, "tiles": steps.tiles},
        "roofline": {"names": roofline.names, "table": roofline.table.tolist(), "overlap": roofline.overlap},
        "hull": {
            "operators": hull.operators,
            "places": hull.places.tolist(),
            "owner": hull.owner.tolist(),
            "low": hull.low.tolist(),
            "high": hull.high.tolist(),
            "near": hull.near.tolist(),
        },
        "calibration": {
            "floors": calibration.floors,
            "least_s": calibration.least_s,
            "quantiles": [
                [operator, coverage, None if math.isinf(value) else value]
                for (operator, coverage), value in calibration.quantiles.items()
            ],
        },
        "shares": parameters.shares,
    }
    return json.dumps(content, allow_nan=False, separators=(",", ":"))


def parameters_from(text: str) -> Parameters:
    """Reads what `text_of` wrote; raises ValueError, KeyError or TypeError where it is something else."""
    content: dict[str, Any] = json.loads(text)
    if content["schema_version"] != _VERSION:
        raise ValueError(f"schema version {content['schema_version']}, this harness reads {_VERSION}")
    hull, steps = content["hull"], content["steps"]
    return Parameters(
        Roofline(
            Steps(steps["units"], steps["depth"], steps["channels"], tuple((a, b, c) for a, b, c in steps["tiles"])),
            tuple(content["roofline"]["names"]),
            np.array(content["roofline"]["table"], dtype=np.float64),
            content["roofline"]["overlap"],
        ),
        Hull(
            tuple(hull["operators"]),
            np.array(hull["places"], dtype=np.float64),
            np.array(hull["owner"], dtype=np.int64),
            *(np.array(hull[name], dtype=np.float64) for name in ("low", "high", "near")),
        ),
        Calibration(
            content["calibration"]["floors"],
            {
                (operator, Coverage(coverage)): math.inf if value is None else value
                for operator, coverage, value in content["calibration"]["quantiles"]
            },
            content["calibration"]["least_s"],
        ),
        content["shares"],
    )
