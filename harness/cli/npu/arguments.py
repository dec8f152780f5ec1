"""Arguments and options that several `harness npu` commands share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

Model = Annotated[
    str, typer.Argument(metavar="MODEL.onnx", help="An ONNX file, or builtin:NAME (builtin:resnet50, …).")
]
ModelOrProgram = Annotated[
    str,
    typer.Argument(
        metavar="MODEL.onnx|PROGRAM", help="An ONNX file, builtin:NAME, or a program file of `npu compile -o`."
    ),
]
CsvFile = Annotated[Path | None, typer.Option("--csv", metavar="FILE", help="Write the rows to this CSV file.")]
