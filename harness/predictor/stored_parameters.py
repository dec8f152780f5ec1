"""A predictor's parameters other than its trees, as one line of JSON."""

from __future__ import annotations

import json
import math
from dataclasses import asdict, dataclass
from typing import Annotated

import numpy as np
from pydantic import BaseModel, Field, ValidationError

from harness.predictor.bounds import Bounds
from harness.predictor.roofline.device_tiling import DeviceTiling
from harness.predictor.roofline.roofline import Roofline
from harness.predictor.uncertainty.coverage import Coverage, Hull
from harness.predictor.uncertainty.intervals import Calibration, Scale
from harness.strict_model import Amount, Positive, StrictModel

_VERSION = 11
_Number = Annotated[float, Field(allow_inf_nan=False)]
_Row = tuple[_Number, ...]


class OtherVersion(ValueError):
    """The parameters are of another version of the program."""


class _Roofline(StrictModel):
    tile_constants: _Row
    names: tuple[str, ...]
    table: tuple[_Row, ...]
    overlap: _Number
    alone: _Number


class _Hull(StrictModel):
    operators: tuple[str, ...]
    places: tuple[_Row, ...]
    owner: tuple[Annotated[int, Field(ge=0, lt=2**31)], ...]
    low: tuple[_Row, ...]
    high: tuple[_Row, ...]
    near: _Row
    names: tuple[str, ...]


class _Calibration(StrictModel):
    expected: dict[str, Scale]
    quantiles: tuple[tuple[str, Coverage, Amount | None], ...]
    usual: Positive


class _Version(BaseModel):
    schema_version: int


class _Content(StrictModel):
    schema_version: int
    steps: DeviceTiling
    roofline: _Roofline
    hull: _Hull
    bounds: Bounds
    calibration: _Calibration


@dataclass(frozen=True)
class Parameters:
    """Parameters of features, coverage, bounds and intervals."""

    roofline: Roofline
    hull: Hull
    bounds: Bounds
    calibration: Calibration


def text_of(parameters: Parameters) -> str:
    """Return one line of JSON; floats are read back to the last bit."""
    roofline, calibration = parameters.roofline, parameters.calibration
    content = {
        "schema_version": _VERSION,
        "steps": asdict(roofline.tiling),
        "roofline": {
            "tile_constants": roofline.tile_constants.tolist(),
            "names": roofline.names,
            "table": roofline.table.tolist(),
            "overlap": roofline.overlap,
            "alone": roofline.alone,
        },
        "hull": {name: np.asarray(value).tolist() for name, value in vars(parameters.hull).items()},
        "bounds": asdict(parameters.bounds),
        "calibration": {
            "expected": {operator: asdict(scale) for operator, scale in calibration.expected.items()},
            "quantiles": [
                [operator, coverage, None if math.isinf(value) else value]
                for (operator, coverage), value in calibration.quantiles.items()
            ],
            "usual": calibration.usual,
        },
    }
    return json.dumps(content, allow_nan=False, separators=(",", ":"))


def require_own_version(text: str) -> None:
    """Raise OtherVersion for the parameters of another version; what is no such text is left to `parameters_from`."""
    try:
        version = _Version.model_validate_json(text).schema_version
    except ValidationError:
        return
    if version != _VERSION:
        raise OtherVersion(f"Its schema version is {version}, this harness reads {_VERSION}")


def parameters_from(text: str) -> Parameters:
    """Read the text of `text_of`; raises OtherVersion for one of another version, and ValueError for any other."""
    require_own_version(text)
    try:
        content = _Content.model_validate_json(text)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        raise ValueError(f"{'.'.join(map(str, first['loc']))}: {first['msg']}"[:300]) from None
    line = content.roofline
    constants, table = np.array(line.tile_constants), np.array(line.table)
    roofline = Roofline(content.steps, constants, line.names, table, line.overlap, line.alone)
    arrays = {name: np.array(value) for name, value in content.hull.model_dump(exclude={"operators", "names"}).items()}
    hull = Hull(content.hull.operators, names=content.hull.names, **arrays)
    quantiles = {
        (operator, coverage): math.inf if value is None else value
        for operator, coverage, value in content.calibration.quantiles
    }
    calibration = Calibration(content.calibration.expected, quantiles, content.calibration.usual)
    return Parameters(roofline, hull, content.bounds, calibration)
