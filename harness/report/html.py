"""The report: one self-contained HTML file, with a content security policy that forbids the page to load anything."""

from __future__ import annotations

import base64
import hashlib
import importlib.resources
import json
import shlex
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bokeh.resources import Resources
from jinja2 import DictLoader, Environment, StrictUndefined

from harness.device.variant import Variant
from harness.estimation.network_estimate import NetworkEstimate, estimate_network
from harness.files import write_whole
from harness.latency.overhead import Coefficient, OverheadModel
from harness.lut.lut_tables import A_B_C, OVERHEAD_UNITS
from harness.lut.table import Lut
from harness.lut.table_samples import TableSamples, table_samples
from harness.network.keyed_network import KeyedNetwork
from harness.network.model_references import BUILTIN_NAMES
from harness.network.network_list import NetworksRead, RefusedNetwork
from harness.report.figures import COLOURS
from harness.report.networks import networks_section
from harness.report.networks.layer_truth import truth_section
from harness.report.networks.network_graph import connections
from harness.report.networks.network_section import section
from harness.report.overhead_figures import sample_figures
from harness.report.page_values import ReportTable, Unit, display, percent, significant, unit_for
from harness.text import Facts, clock_name, dim_options, is_safe_name
from harness.validation.results import Validation
from harness.version import VERSION
from harness.workspace import Workspace

TEMPLATE, FIGURE_TEMPLATE, PARTS = "template.html.j2", "figure.html.j2", "parts.html.j2"
STYLE, SCRIPTS = "report.css.j2", ("report.js.j2", "tables.js.j2")
_LONGEST_NAME = 100
_MODELS: dict[OverheadModel, str] = {"plain": "least squares", "extended": "with further terms"}


def report_networks(
    path: Path,
    workspace: Workspace,
    table: Lut,
    read: NetworksRead[KeyedNetwork],
    command: Sequence[str],
    validation: Validation | None = None,
) -> None:
    """Write the report of networks that were read for a table, with the samples that the workspace holds of the table.

    `command` is the one that writes the report. Networks that the validation refused are listed and have no section.
    """
    refused = validation.refused_networks if validation else read.refused
    files = {one.file for one in refused}
    left = [one for one in read.networks if one.file not in files]
    source = ReportSource(command, refused, table_samples(workspace, table), left, read.dims)
    write_report(path, table, [estimate_network(one, table) for one in left], validation, source)


def write_report(
    path: Path,
    table: Lut,
    estimates: Sequence[NetworkEstimate],
    validation: Validation | None = None,
    source: ReportSource | None = None,
) -> None:
    """Write the report of a table and of the networks estimated from it, with measurements if `validation` is given.

    All measured networks have an estimate. `source` adds the command, the graphs and the samples of the figures.
    The file appears whole or not at all. Raises ConfigurationError if it cannot be written.
    """
    write_whole(path, render(table, estimates, validation, source).encode("utf-8"))


def render(
    table: Lut,
    estimates: Sequence[NetworkEstimate],
    validation: Validation | None = None,
    source: ReportSource | None = None,
) -> str:
    """Return the page as text."""
    source = source or ReportSource()
    pairs = networks_section.pair(estimates, validation)
    return page(
        TEMPLATE,
        device=display(table.device),
        facts=_facts(table),
        networks=networks_section.networks_table(pairs, table.clock),
        saved=networks_section.saved_layers(estimates),
        scores=networks_section.scores(validation) if validation else (),
        unanswered=networks_section.unanswered(validation) if validation else "",
        refused=[display(str(one), 600) for one in source.refused],
        changes=[display(name) for name in validation.fingerprint_changes] if validation else [],
        pictures=networks_section.pictures(pairs),
        sections=list(map(section, estimates, source.edges or [None] * len(estimates))),
        truth=truth_section(validation.oracle) if validation and validation.oracle else None,
        method=table.method,
        machine=display(validation.machine.text if validation and validation.machine else table.machine, 400),
        overhead=_overhead_table(table),
        terms=_terms_table(table),
        fit=_fit_facts(table),
        sample_figures=sample_figures(source.samples) if source.samples else (),
        fingerprint=[(display(name), display(value, 2000)) for name, value in sorted(table.fingerprint.items())],
        command=source.command_line,
        commands=_commands(
            table, [estimate.name for estimate in estimates], source.dim_options, validation is not None
        ),
    )


def write_figure(path: Path, title: str, figure: str, command: str, notes: Sequence[str] = ()) -> None:
    """Write a page with one figure of `figures` or `line_plot`, sentences below it, and the command that made it.

    Raises ConfigurationError if it cannot be written.
    """
    shown = [display(note, 400) for note in notes]
    content = page(FIGURE_TEMPLATE, title=display(title), figure=figure, notes=shown, command=command)
    write_whole(path, content.encode("utf-8"))


def page(template: str, **fields: Any) -> str:
    """Return a page of a template with everything that it needs inside it."""

    environment = Environment(
        loader=DictLoader({name: _resource(name) for name in (PARTS, template)}),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["packed"] = _packed
    colours = _inline_json(json.dumps(COLOURS))
    own = (environment.from_string(_resource(name)).render(colours=colours) for name in SCRIPTS)
    scripts = tuple(text.replace("\r\n", "\n") for text in (*_bokeh(), *own))
    return environment.get_template(template).render(
        policy=_policy(scripts),
        style=_trusted(_resource(STYLE)),
        scripts=[_trusted(script) for script in scripts],
        version=VERSION,
        **fields,
    )


def _facts(table: Lut) -> tuple[tuple[str, str], ...]:
    return (
        ("table", display(table.name)),
        ("clock", display(clock_name(table.clock))),
        ("method", display(table.method)),
        ("visits", display(table.visits)),
        ("date", _date(table.created)),
        ("entries", f"{len(table.entries):,}"),
    )


def _date(created: str) -> str:
    """Return a UTC time to the minute, any other text unchanged."""
    shown = display(created)
    return f"{shown[:10]} {shown[11:16]} UTC" if shown.endswith("+00:00") else shown


def _commands(table: Lut, names: Sequence[str], dims: str, validated: bool) -> tuple[str, ...]:
    """Return the commands that measure and estimate again; names that a shell would interpret are replaced."""
    device = table.device if is_safe_name(table.device) else "DEVICE"
    folder = table.path.name if is_safe_name(table.path.name) else "TABLE"
    safe = (name if is_safe_name(name, _LONGEST_NAME) else "MODEL" for name in names)
    models = (f"builtin:{name}" if name in BUILTIN_NAMES else f"{name.removesuffix('.onnx')}.onnx" for name in safe)
    words = (" ".join(dict.fromkeys(models)) or "MODEL.onnx") + dims
    here = f"--device {device}{Variant.of(table.fingerprint).options()}"
    chosen = f" --lut {device}/{folder}" if table.is_imported or table.is_comparison else ""
    last = f"harness {'validate' if validated else 'estimate'} {words} {here}{chosen} --html report.html"
    build = f"harness lut build {here} --method {table.method}"
    return (last,) if table.is_imported else (f"harness profile {words} {here}", build, last)


def _resource(name: str) -> str:
    return importlib.resources.files("harness.report").joinpath("templates", name).read_text(encoding="utf-8")


def _bokeh() -> list[str]:
    """Return BokehJS without widgets, tables and mathematics."""
    return list(Resources(mode="inline", components=["bokeh"], log_level="error").js_raw)


def _policy(scripts: Sequence[str]) -> str:
    """Return the content security policy: only the scripts of the page run, and nothing is fetched."""
    digests = (base64.b64encode(hashlib.sha256(script.encode("utf-8")).digest()).decode() for script in scripts)
    allowed = " ".join(f"'sha256-{digest}'" for digest in digests)
    return (
        f"default-src 'none'; script-src {allowed}; style-src 'unsafe-inline'; img-src data: blob:;"
        " base-uri 'none'; form-action 'none'"
    )


def _trusted(text: str) -> str:
    """Return our own code for use between its tags; raise ValueError if it could end them."""
    if "</script" in text.lower() or "</style" in text.lower() or "<!--" in text:
        raise ValueError("a script or style of the report would end its own element")
    return text


def _packed(text: str) -> str:
    """Return the JSON of a figure compressed, in Base64; it is most of what grows with the number of networks."""
    return base64.b64encode(zlib.compress(text.encode("utf-8"), 9)).decode("ascii")


def _inline_json(text: str) -> str:
    """Return JSON for a script element, without characters that have a meaning in HTML."""
    for character in "<>&\u2028\u2029":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return text


def _overhead_table(table: Lut) -> ReportTable:
    """Return the table of a, b and c: by least squares (S1.4), then as fitted with further terms."""
    if table.is_imported:
        return _stated_overhead(table)
    plain, extended = (table.overhead_by(model) for model in _MODELS)
    rows = []
    for term in A_B_C.values():
        fits = [fit.coefficients[term] if fit else None for fit in (plain, extended)]
        unit = unit_for([max((max(abs(one.value), abs(one.high)) for one in fits if one), default=0.0)], smallest=0)
        rows.append((OVERHEAD_UNITS[term], *_fitted(fits[0], unit), *_fitted(fits[1], unit), unit.symbol))
    header = ("coefficient", "least squares", "95 % interval", "with further terms", "95 % interval", "unit")
    probes = (plain or table.overhead).probes
    return ReportTable(f"Overhead fitted on {probes} null probes", header, tuple(rows), (0, 5))


def _stated_overhead(table: Lut) -> ReportTable:
    rows = []
    for term in A_B_C.values():
        one = table.overhead.coefficients[term]
        unit = unit_for([one.value], smallest=0)
        rows.append((OVERHEAD_UNITS[term], unit.text(one.value), unit.symbol))
    return ReportTable("Overhead as the import states it", ("coefficient", "value", "unit"), tuple(rows), (0, 2))


def _fitted(one: Coefficient | None, unit: Unit) -> tuple[str, str]:
    return ("not fitted", "") if one is None else (unit.text(one.value), unit.interval((one.low, one.high)))


def _terms_table(table: Lut) -> ReportTable | None:
    """Return the table of the further terms, None where the table has none."""
    extended = table.overhead_by("extended")
    names = [name for name in extended.least_squares if name not in A_B_C.values()] if extended else []
    if extended is None or not names:
        return None
    rows = []
    for name in names:
        one = extended.coefficients[name]
        unit = unit_for([max(abs(one.value), abs(one.high))], smallest=0)
        rows.append((OVERHEAD_UNITS[name], *_fitted(one, unit), unit.symbol))
    header = ("further term", "time of one", "95 % interval", "unit")
    return ReportTable(f"Further terms, fitted on {extended.probes} null probes", header, tuple(rows), (0, 3))


def _fit_facts(table: Lut) -> Facts:
    """Return the quality of the fits."""
    found: list[tuple[str, str]] = [("method of the table", table.method)]
    if table.is_imported:
        return tuple(found)
    for model, name in _MODELS.items():
        fit = table.overhead_by(model)
        if fit is not None:
            facts = (significant(fit.r2, 5), significant(fit.condition), percent(fit.scatter, 2))
            found += zip((f"R², {name}", f"condition number, {name}", f"scatter, {name}"), facts, strict=True)
    return tuple(found)


@dataclass(frozen=True)
class ReportSource:
    """The words of the command that writes a report, its networks, those it could not use, and the table's samples.

    `networks` are those of the estimates, in the same order; without them the report has no graphs. `dims` are
    the values of symbolic dimensions.
    """

    command: Sequence[str] = ()
    refused: Sequence[RefusedNetwork] = ()
    samples: TableSamples | None = None
    networks: Sequence[KeyedNetwork] = ()
    dims: Mapping[str, int] = field(default_factory=dict)

    @property
    def edges(self) -> list[tuple[tuple[int, int], ...] | None]:
        """Which layers of each network read results of which."""
        return [connections(network.layers) for network in self.networks]

    @property
    def command_line(self) -> str:
        """The command as a shell reads it, empty if no command wrote the report."""
        return shlex.join(display(word, 4000) for word in self.command)

    @property
    def dim_options(self) -> str:
        """The options of a command that set the symbolic dimensions, with a space before each."""
        dims = {display(name): value for name, value in self.dims.items()}
        return f" {dim_options(dims)}" if dims else ""
