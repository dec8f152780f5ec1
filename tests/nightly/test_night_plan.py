"""nightly.toml: the meaning of its keys, and the errors for invalid plans."""

import tomllib
from datetime import date, datetime, time
from pathlib import Path

import pytest
from hypothesis import given, strategies as st
from night_lab import Lab

from harness.errors import ConfigurationError
from harness.nightly.night_plan import NightPlan, load_plan
from harness.nightly.plan_file import NightSettings, dims_key

HEAD = '[nightly]\ndevices = ["one"]\n'
SET = '[[set]]\nname = "s"\nnetworks = ["builtin:resnet50"]\n'

WRONG: dict[str, tuple[str | bytes, tuple[str, ...]]] = {
    "not TOML": ("[nightly", ("not valid TOML",)),
    "not text": (b"\xff\xfe", ("not valid TOML",)),
    "nested": ("a = " + "[" * 20_000, ("not valid TOML",)),
    "empty": ("", ("nightly is missing", '[nightly] with devices = ["npu01"]')),
    "no set": (HEAD, ("set is missing", '[[set]] with name = "vision"')),
    "misspelt table": (HEAD.replace("nightly", "nigthly") + SET, ("nigthly is unknown", "Did you mean nightly?")),
    "networks under nightly": (HEAD + 'networks = ["builtin:resnet50"]\n', ("nightly.networks is unknown",)),
    "unknown table": (HEAD + SET + "[nightyl]\n", ("nightyl is unknown", "Did you mean nightly?")),
    "unknown key": (HEAD + 'bugdet = "1m"\n' + SET, ("nightly.bugdet is unknown", "Did you mean budget?")),
    "unknown key of a set": (HEAD + SET + "run = 3\n", ("set 's': run is unknown", "Did you mean runs?")),
    "unknown key of an engine": (HEAD + 'engine = {daks = "tcp://h:1"}\n' + SET, ("engine",)),
    "engine unknown": (HEAD + 'engine = "slurm"\n' + SET, ("nightly.engine",)),
    "engine without port": (HEAD + 'engine = {dask = "http://h"}\n' + SET, ("engine.dask is not the address",)),
    "half of TLS": (HEAD + 'engine = {dask = "tls://h:1", tls_key = "x"}\n' + SET, ("engine.tls_ca_file",)),
    "budget a number": (HEAD + "budget = 30\n" + SET, ("nightly.budget is not a duration",)),
    "budget negative": (HEAD + 'budget = "-3m"\n' + SET, ("nightly.budget is not a duration",)),
    "budget nothing": (HEAD + 'budget = "0s"\n' + SET, ("nightly.budget is not a duration",)),
    "time limit a number": (HEAD + "time_limit = 30\n" + SET, ("nightly.time_limit is not a duration",)),
    "time limit of a set": (HEAD + SET + 'time_limit = "soon"\n', ("set 's': time_limit is not a duration",)),
    "day begins late": (HEAD + 'day_begins = "24:00"\n' + SET, ("nightly.day_begins is not a time of day",)),
    "threshold": (HEAD + 'threshold = "0%"\n' + SET, ("nightly.threshold is not a share",)),
    "keep": (HEAD + "keep = 0\n" + SET, ("nightly.keep",)),
    "retries true": (HEAD + "retries = true\n" + SET, ("nightly.retries",)),
    "all beside devices": (HEAD + "all = true\n" + SET, ("nightly.all cannot be combined",)),
    "device a path": ('[nightly]\ndevices = ["../x"]\n' + SET, ("nightly.devices must be",)),
    "devices a word": ('[nightly]\ndevices = "npu01"\n' + SET, ("nightly.devices is wrong", "should be an array")),
    "no device": ("[nightly]\n" + SET, ("set 's' has no device",)),
    "name a path": (HEAD + SET.replace('"s"', '"../s"'), ("name must be",)),
    "name twice": (HEAD + SET + SET, ("set 's': name is given twice",)),
    "no name": (HEAD + '[[set]]\nspace = "builtin:common"\n', ("set number 1: name is missing",)),
    "nothing to measure": (HEAD + '[[set]]\nname = "s"\n', ("either networks or a space",)),
    "both": (HEAD + SET + 'space = "builtin:common"\n', ("either networks or a space",)),
    "dims of a space": (
        HEAD + '[[set]]\nname = "s"\nspace = "builtin:common"\ndims = {n = 1}\n',
        ("dims is valid only",),
    ),
    "unknown built-in": (HEAD + SET.replace("resnet50", "resnet5"), ("builtin:resnet5", "Did you mean")),
    "unknown space": (HEAD + '[[set]]\nname = "s"\nspace = "builtin:hearing"\n', ("builtin:hearing",)),
    "no such file": (HEAD + SET.replace("builtin:resnet50", "absent.onnx"), ("'absent.onnx', which is not a file",)),
    "a folder": (HEAD + SET.replace("builtin:resnet50", "."), ("which is not a file",)),
    "runs zero": (HEAD + SET + "runs = 0\n", ("set 's': runs",)),
    "weight NaN": (HEAD + SET + "weight = nan\n", ("set 's': weight",)),
    "dims negative": (HEAD + SET + "dims = {n = -1}\n", ("set 's': dims",)),
}


@pytest.mark.parametrize("case", WRONG)
def test_wrong_plan_names_the_key(case: str, tmp_path: Path) -> None:
    """An invalid plan is a ConfigurationError that names the key and the next step."""
    content, mentions = WRONG[case]
    path = tmp_path / "nightly.toml"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(ConfigurationError) as raised:
        load_plan(path)
    assert all(word in str(raised.value) for word in (*mentions, "nightly.toml")), str(raised.value)
    assert raised.value.next_step


def test_plan_that_is_not_there(tmp_path: Path) -> None:
    """Without a plan the error shows what one looks like."""
    with pytest.raises(ConfigurationError, match=r"There is no plan.*\[\[set\]\]"):
        load_plan(tmp_path / "nightly.toml")


def test_plan_means_what_it_says(tmp_path: Path) -> None:
    """Every key reaches the plan; a set overrides the devices; paths are relative to the file."""
    lab = Lab(tmp_path / "lab")
    path = lab.root / "plans" / "p.toml"
    path.parent.mkdir()
    path.write_text(
        '[nightly]\ngroups = ["edge"]\nbudget = "1.5h"\norder = "listed"\nmax_age = "3d"\nday_begins = "08:30"\n'
        'keep = 5\nthreshold = "2.5%"\nengine = {dask = "tcp://head:8786"}\nretries = 0\n'
        '[[set]]\nname = "nets"\nnetworks = ["../a.onnx", "builtin:resnet50"]\ndevices = ["one"]\nruns = 7\n'
        'budget = "90s"\ntime_limit = "2h"\ndims = {batch = 2, cached = 0}\nweight = 3.0\n'
        '[[set]]\nname = "space"\nspace = "builtin:common"\n'
    )
    plan = load_plan(path)
    night = plan.settings
    nets, space = (one.settings for one in plan.sets)
    assert (night.budget_s, night.order, night.max_age_s, night.day_begins) == (5400, "listed", 3 * 86400, time(8, 30))
    assert (night.keep, night.threshold, plan.scheduler, night.retries) == (5, 0.025, "tcp://head:8786", 0)
    assert Path(nets.networks[0]).samefile(lab.root / "a.onnx") and nets.networks[1] == "builtin:resnet50"
    assert (nets.devices, nets.groups, nets.runs, nets.budget_s) == (("one",), (), 7, 90)
    assert (dict(nets.dims), nets.weight, nets.time_limit_s) == ({"batch": 2, "cached": 0}, 3.0, 7200)
    assert (space.time_limit_s, night.time_limit_s) == (None, 6 * 3600)
    assert (space.groups, space.space, space.runs) == (("edge",), "builtin:common", "auto")


def test_digest_follows_what_is_measured(tmp_path: Path) -> None:
    """The digest depends on the content of files and the number of runs, not on budget or weight."""
    lab = Lab(tmp_path / "lab")
    first = lab.plan("a").sets[0].digest
    assert lab.plan("b").sets[0].digest == first, "the same content under another name"
    assert lab.plan("a", runs=6).sets[0].digest != first
    assert lab.plan("a", nightly='budget = "1m"').sets[0].digest == first
    (lab.root / "a.onnx").write_bytes(b"another")
    assert lab.plan("a").sets[0].digest != first


@given(st.datetimes(datetime(2020, 1, 1), datetime(2030, 1, 1)), st.times())
def test_night_is_named_by_the_day_it_began(moment: datetime, begins: time) -> None:
    """A night lasts 24 hours from `day_begins` and has the date of its first hour."""
    plan = NightPlan(Path("p"), (), NightSettings().model_copy(update={"day_begins": begins}))
    night = plan.night(moment)
    start = datetime.combine(night, begins)
    assert 0 <= (moment - start).total_seconds() < 86400


def test_small_hours_belong_to_the_evening_before() -> None:
    """02:00 belongs to yesterday's night, 23:00 to today's."""
    plan = NightPlan(Path("p"), ())
    assert plan.night(datetime(2026, 11, 21, 2)) == plan.night(datetime(2026, 11, 20, 23)) == date(2026, 11, 20)


@pytest.mark.parametrize(
    ("name", "key"), [("batch", "batch"), ("x.0", '"x.0"'), ("my dim", '"my dim"'), ("it's", '"it\'s"')]
)
def test_advice_names_the_key_of_the_plan(name: str, key: str) -> None:
    """The advice of a plan is TOML for a dimension of any name."""
    written = f"dims = {{{key} = 1, other = 1}}"
    assert dims_key({name: 1, "other": 1}) == f"{written} in the set"
    assert tomllib.loads(written) == {"dims": {name: 1, "other": 1}}
