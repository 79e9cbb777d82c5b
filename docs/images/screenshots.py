"""Take the pictures of the report in this folder, player.gif among them.

    python docs/images/screenshots.py RUN COMPARISON

RUN: a folder of `lfpo demo`. COMPARISON: a folder with the results.json of `lfpo compare`. Needs the extra `dev`
and a Chromium.
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


def main(run: Path, comparison: Path) -> None:
    browser = os.environ.get("LFPO_CHROMIUM") or shutil.which("chromium") or shutil.which("google-chrome")
    with sync_playwright() as playwright, tempfile.TemporaryDirectory() as scratch:
        running = playwright.chromium.launch(executable_path=browser, args=["--no-sandbox"])

        def picture(name: str, folder: Path, scheme: str, width: int, height: int, step: int | None = None) -> None:
            page = running.new_page(viewport={"width": width, "height": height}, color_scheme=scheme)
            file = Path(scratch) / f"{name}.html"
            file.write_text(html_page(page_data(Run(folder))))
            page.goto(file.as_uri())
            page.wait_for_selector("main .panel")
            if step is not None:
                page.locator(".player input[type=range]").fill(str(step))
            if name == "report-straight":
                page.get_by_role("heading", name="Learning").evaluate("(e) => e.closest('section').scrollIntoView()")
            page.wait_for_timeout(500)  # colours fade in
            page.screenshot(path=HERE / f"{name}.png")
            if name == "report-player":
                with page.expect_download() as download:
                    page.get_by_role("button", name="GIF").click()
                download.value.save_as(HERE / "player.gif")

        picture("report-player", run, "light", 1200, 980, step=3)
        picture("report-straight", run, "dark", 1200, 1340)
        picture("report-comparison", comparison, "light", 1200, 1000)
        running.close()


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
