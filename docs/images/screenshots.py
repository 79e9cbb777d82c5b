"""Take the pictures of the report in this folder, report-player.png and player.gif.

    python docs/images/screenshots.py RUN

RUN: a folder of `lfpo demo`. Needs the extra `dev` and a Chromium.
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from pathlib import Path

from playwright.sync_api import sync_playwright

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
        with page.expect_download() as download:
            page.get_by_role("button", name="GIF").click()
        download.value.save_as(HERE / "player.gif")
        running.close()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
