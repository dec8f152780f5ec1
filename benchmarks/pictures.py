"""Draws pictures of pages for the documentation in a headless Chromium: report, layers, nights, compare and run.

python -m benchmarks.pictures
"""

import io
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

IMAGES = Path(__file__).resolve().parents[1] / "docs" / "images"
_WIDTH = 1280
_COLOURS = 256
_DEVICES = '[devices.nvdla-256]\nbackend = "emulated-npu"\n[devices.nvdla-256.options]\npreset = "nvdla-256"\n'
_NETWORK = "builtin:squeezenet"
_BOARD = '[devices.board1]\nbackend = "emulated-npu"\n[devices.board1.options]\npreset = "edge"\n'
_SLOW = 'slow = "CONVOLVE 1x64x13x13,w256x64x3x3 1x3x3 1x256x13x13:1.06"\n'
_PLAN = '[nightly]\ndevices = ["board1"]\n[[set]]\nname = "vision"\nnetworks = ["builtin:squeezenet"]\n'
_NIGHTS, _SLOW_FROM = 9, 7
_SLOWER = 7
"""The exit code of a night that finds something slower."""
_Step = str | tuple[str, str]
"""A command, or the name and content of a file of the workspace."""
_PAGES: dict[str, tuple[str, int, tuple[_Step, ...]]] = {
    "report": ("html", 1280, ("demo", "report --device npu01 --html report.html")),
    "nights": (
        "html",
        1840,
        (
            ("nightly.toml", _PLAN),
            *(
                step
                for night in range(1, _NIGHTS + 1)
                for step in (
                    ("devices.toml", _BOARD + (_SLOW if night >= _SLOW_FROM else "")),
                    f"nightly run --night 2026-11-{night:02d}",
                )
            ),
            "nightly history --html nights.html",
        ),
    ),
    "run": ("#figures", 1300, (f"npu run {_NETWORK} --no-values --html run.html",)),
    "layers": ("#layers", 1000, (f"estimate {_NETWORK} --device npu01 --html layers.html",)),
    "compare": (
        "#networks",
        1000,
        (
            ("devices.toml", _DEVICES),
            f"profile {_NETWORK} --device nvdla-256",
            "lut build --device nvdla-256",
            f"compare npu01 nvdla-256 {_NETWORK} --html compare.html",
        ),
    ),
}
"""By name: the element that the picture begins with, its height in pixels, and the steps that write the page."""


def main() -> None:
    """Write the pages and their pictures."""
    from playwright.sync_api import sync_playwright

    program = shutil.which("chromium") or shutil.which("google-chrome")
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as driver:
        workspace = Path(folder)
        chromium = driver.chromium.launch(executable_path=program, args=["--no-sandbox"])
        for name, (heading, height, steps) in _PAGES.items():
            for step in steps:
                if isinstance(step, tuple):
                    (workspace / step[0]).write_text(step[1])
                    continue
                done = subprocess.run([sys.executable, "-m", "harness", *step.split()], cwd=workspace)
                if done.returncode not in (0, _SLOWER):
                    raise SystemExit(f"{step} ended with {done.returncode}")
            page = chromium.new_page(viewport={"width": _WIDTH, "height": height}, color_scheme="light")
            page.goto((workspace / f"{name}.html").as_uri())
            page.wait_for_timeout(3000)  # figures are drawn one after the other
            page.locator(heading).evaluate("one => one.scrollIntoView()")
            _save(IMAGES / f"{name}.png", page.screenshot())
        chromium.close()


def _save(path: Path, png: bytes) -> None:
    """Write a picture with a palette, which is smaller."""
    from PIL import Image

    Image.open(io.BytesIO(png)).convert("RGB").quantize(_COLOURS).save(path, optimize=True)
    print(f"{path.name}  {path.stat().st_size:,} bytes")


if __name__ == "__main__":
    main()
