"""Draws pictures of pages for the documentation in a headless Chromium: run.png, layers.png and compare.png.

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
_PAGES = {
    "run": ("#figures", 1300, (f"npu run {_NETWORK} --no-values --html run.html",)),
    "layers": ("#layers", 1000, (f"estimate {_NETWORK} --device npu01 --html layers.html",)),
    "compare": (
        "#networks",
        1000,
        (
            f"profile {_NETWORK} --device nvdla-256",
            "lut build --device nvdla-256",
            f"compare npu01 nvdla-256 {_NETWORK} --html compare.html",
        ),
    ),
}
"""By name: the heading that the picture begins with, its height in pixels, and the commands that write the page."""


def main() -> None:
    """Write the pages and their pictures."""
    from playwright.sync_api import sync_playwright

    program = shutil.which("chromium") or shutil.which("google-chrome")
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as driver:
        workspace = Path(folder)
        (workspace / "devices.toml").write_text(_DEVICES)
        chromium = driver.chromium.launch(executable_path=program, args=["--no-sandbox"])
        for name, (heading, height, commands) in _PAGES.items():
            for command in commands:
                subprocess.run([sys.executable, "-m", "harness", *command.split()], cwd=workspace, check=True)
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
