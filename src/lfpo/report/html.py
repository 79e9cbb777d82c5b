"""`report.html`: the page of a run or a comparison, one file without external resources."""

import base64
import hashlib
import json
from functools import cache
from pathlib import Path

from lfpo.config.files import replace_file, writing
from lfpo.config.json import Json
from lfpo.report.data import page_data
from lfpo.report.overview import overview_data
from lfpo.runs.directory import Run

HERE = Path(__file__).parent
# page.js starts the page.
SCRIPTS = ("dom", "charts", "pane", "picture", "player", "heatmap", "groups", "comparison", "overview", "page")


def write_report(run: Run) -> Path:
    """Write `report.html` into the folder of a run, a comparison or runs; returns its path. Raises UserError for
    another."""
    path = run.dir / "report.html"
    text = page(data_of_folder(run))
    with writing(path):
        replace_file(path, text)
    return path


def data_of_folder(run: Run) -> Json:
    """The data of the page of a run, a comparison, or a folder of runs."""
    if any((run.dir / name).exists() for name in ("metrics.jsonl", "config.yaml", "results.json")):
        return page_data(run)
    return overview_data(run.dir)


def page(data: Json) -> str:
    """The whole page. Its content security policy allows only the script and style sheet below, by their hashes."""
    css, script = _parts()
    policy = (
        f"default-src 'none'; img-src data:; style-src '{_digest(css)}'; script-src '{_digest(script)}'; "
        f"connect-src {chr(39)}{'self' if data.get('live') else 'none'}{chr(39)}; base-uri 'none'; form-action 'none'"
    )
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        '<meta name="color-scheme" content="light dark"><link rel="icon" href="data:,">'
        f"<title>lfpo report</title><style>{css}</style></head><body>"
        '<div id="theme"></div><main></main><noscript>This page draws itself with JavaScript.</noscript>'
        f'<script type="application/json" id="data">{embedded(data)}</script><script>{script}</script></body></html>\n'
    )


def embedded(data: object) -> str:
    """JSON for a script element: "<" is escaped, so no text can close the element, and all characters are ASCII."""
    return json.dumps(data, separators=(",", ":"), allow_nan=False).replace("<", "\\u003c")


@cache
def _parts() -> tuple[str, str]:
    scripts = [(HERE / "js" / f"{name}.js").read_text(encoding="utf-8") for name in SCRIPTS]
    return (HERE / "page.css").read_text(encoding="utf-8"), "\n".join(scripts)


def _digest(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
