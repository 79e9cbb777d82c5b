"""Take the pictures of the report in this folder, report-player.png and player.gif.

    python docs/images/screenshots.py RUN

RUN: a folder of `lfpo demo`. Needs the extra `dev` (Pillow comes with it) and a Chromium.
"""

from __future__ import annotations

import io
import os
import shutil
import sys
import tempfile
from pathlib import Path

from PIL import Image
from playwright.sync_api import Page, sync_playwright

from lfpo.report.data import page_data
from lfpo.report.html import page as html_page
from lfpo.runs.directory import Run

HERE = Path(__file__).parent


def main(run: Path) -> None:
    browser = os.environ.get("LFPO_CHROMIUM") or shutil.which("chromium") or shutil.which("google-chrome")
    with sync_playwright() as playwright, tempfile.TemporaryDirectory() as scratch:
        running = playwright.chromium.launch(executable_path=browser, args=["--no-sandbox"])
        page = running.new_page(viewport={"width": 1200, "height": 980}, color_scheme="light")
        file = Path(scratch) / "report.html"
        file.write_text(html_page(page_data(Run(run))))
        page.goto(file.as_uri())
        page.wait_for_selector("main .panel")
        page.locator(".player input[type=range]").fill("3")
        page.wait_for_timeout(500)  # colours fade in
        page.screenshot(path=HERE / "report-player.png")
        save_animation(page, HERE / "player.gif")
        running.close()


def save_animation(page: Page, path: Path) -> None:
    """Every state of the player as a GIF that repeats, 9 seconds long, the last state 2.5 seconds longer."""
    slider, player = page.locator(".player input[type=range]"), page.locator(".shot")
    last = int(slider.get_attribute("max") or 0)
    frames = []
    for step in range(last + 1):
        slider.fill(str(step))
        page.wait_for_timeout(500)  # colours fade in
        frames.append(Image.open(io.BytesIO(player.screenshot())))
    durations = [9000 // (last + 1)] * last + [9000 // (last + 1) + 2500]
    frames[0].save(path, save_all=True, append_images=frames[1:], duration=durations, loop=0)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
