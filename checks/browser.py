"""A headless Chromium for the tests of pages: the system's browser, run by Playwright."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")


def chromium() -> str:
    """Path of the browser ($LFPO_CHROMIUM, or one on PATH). Skips the test where there is none."""
    pytest.importorskip("playwright.sync_api", reason="playwright is not installed: pip install -e '.[dev]'")
    found = os.environ.get("LFPO_CHROMIUM") or next(filter(None, map(shutil.which, NAMES)), None)
    if found is None:
        pytest.skip(f"no browser: install {NAMES[0]}, or name one in LFPO_CHROMIUM")
    return found


@contextmanager
def browser() -> Iterator[Any]:
    """A browser whose pages reach no host but 127.0.0.1."""
    path = chromium()
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        flags = [
            "--no-sandbox",
            "--disable-gpu",
            "--disable-quic",
            "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1",
        ]
        running = playwright.chromium.launch(executable_path=path, args=flags)
        yield running
        running.close()


class Page:
    """An open page that records its errors and its network requests. context: settings of a tab of its own; without
    any the page is loaded in the tab of the one before, as a tab costs as much as its page."""

    def __init__(self, running: Any, url: str | Path, width: int = 1200, **context: Any):
        self.kept = not context
        kept = running.contexts if self.kept else []  # all other contexts are closed
        self.context = kept[0] if kept else running.new_context(**context)
        self.page = kept[0].pages[0] if kept else self.context.new_page()
        self.page.set_viewport_size({"width": width, "height": 900})
        self.errors: list[str] = []
        self.requests: list[str] = []
        self.listeners: dict[str, Any] = {
            "console": lambda m: self.errors.append(m.text) if m.type in ("error", "warning") else None,
            "pageerror": lambda e: self.errors.append(str(e)),
            "request": lambda r: self.requests.append(r.url),
        }
        for event, listener in self.listeners.items():
            self.page.on(event, listener)
        self.url = url.resolve().as_uri() if isinstance(url, Path) else url

    def __enter__(self) -> Page:
        self.page.goto(self.url)
        self.page.wait_for_selector("main .panel")
        return self

    def __exit__(self, *_: object) -> None:
        for event, listener in self.listeners.items():
            self.page.remove_listener(event, listener)
        if self.kept:
            self.page.goto("about:blank")
        else:
            self.context.close()

    def texts(self, selector: str) -> list[str]:
        return self.page.locator(selector).all_inner_texts()
