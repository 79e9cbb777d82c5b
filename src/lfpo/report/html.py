"""`report.html`: a run on one self-contained page, opened straight from disk."""

from __future__ import annotations

import html
import json
from pathlib import Path
from typing import Any

from ..config import load_yaml
from ..errors import UserError
from ..models.loading import read_json
from ..run import Run
from .figures import learning_curve

SHOWN = 8  # completions of each kind


def write_report(run: Run) -> Path:
    """Write `report.html` into a run's folder and return its path. Raises UserError when it holds no finished step."""
    metrics = run.read_metrics()
    if not metrics:
        raise UserError(f"{run.dir}: no metrics.jsonl with at least one line; give a folder written by lfpo train")
    config = load_yaml(run.dir / "config.yaml")
    info = read_json(run.dir / "run.json")
    sections = [
        _heading(config, info, metrics),
        _before_after(metrics),
        f"<h2>Learning curve</h2><figure>{learning_curve(metrics)}</figure>",
        _times(metrics),
        _completions(run.dir),
        f"<h2>Configuration</h2><details><summary>config.yaml</summary><pre>{_text(_config_text(run.dir))}</pre></details>",
    ]
    css = (Path(__file__).parent / "page.css").read_text(encoding="utf-8")
    page = (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{_text(run.dir.name)}: lfpo report</title><style>{css}</style></head><body>"
        + "".join(sections)
        + "</body></html>\n"
    )
    path = run.dir / "report.html"
    try:
        path.write_text(page, encoding="utf-8")
    except OSError as error:
        raise UserError(f"{path}: could not be written ({error.strerror or error})") from error
    return path


def evaluation_pairs(metrics: list[dict[str, Any]]) -> list[tuple[str, dict[str, float], dict[str, float]]]:
    """(sampler name, first evaluation, last evaluation) for each eval sampler of a run."""
    pairs = []
    for name in sorted({k.split("/")[1] for m in metrics for k in m if k.startswith("eval/")}):
        prefix = f"eval/{name}/"
        rows = [{k.removeprefix(prefix): v for k, v in m.items() if k.startswith(prefix)} for m in metrics]
        rows = [r for r in rows if r]
        pairs.append((name, rows[0], rows[-1]))
    return pairs


def _text(value: object) -> str:
    """Escaped text: model output must never become markup."""
    return html.escape(str(value), quote=True)


def _heading(config: dict[str, Any], info: dict[str, Any], metrics: list[dict[str, Any]]) -> str:
    what = config.get("task") or config.get("data_file") or "a data set"
    objective = config["objective"]["name"]
    seconds = metrics[-1].get("time/total", 0.0)
    return (
        f"<h1>{_text(objective)} on {_text(what)}</h1>"
        f'<p class="dim">{_text(config["model"])}, {metrics[-1]["step"]} of {config["max_steps"]} iterations, '
        f"{seconds / 60:.1f} minutes of training, seed {config['seed']}. {_text(info['environment'])}, "
        f"{_text(', '.join(f'{k} {v}' for k, v in info['versions'].items()))}.</p>"
    )


def _before_after(metrics: list[dict[str, Any]]) -> str:
    pairs = evaluation_pairs(metrics)
    if not pairs:
        return ""
    rows = []
    for name, first, last in pairs:
        for label, r in (("before", first), ("after", last)):
            measured = f"{100 * r['accuracy']:.1f}%" if "accuracy" in r else f"{r['reward']:.3f}"
            interval = f"{100 * r['low']:.1f} to {100 * r['high']:.1f}" if "low" in r else ""
            rows.append(
                f"<tr><td>{_text(name)}</td><td>{label}</td><td class=n>{measured}</td><td class=n>{interval}</td>"
                f"<td class=n>{r['steps']:.1f}</td><td class=n>{r['nfe']:.1f}</td></tr>"
            )
    return (
        "<h2>Held out, before and after</h2><div class=scroll><table><thead><tr><th>sampler</th><th></th>"
        "<th class=n>accuracy</th><th class=n>95 % interval</th><th class=n>steps</th><th class=n>NFE</th></tr></thead>"
        f"<tbody>{''.join(rows)}</tbody></table></div>"
    )


def _times(metrics: list[dict[str, Any]]) -> str:
    names = ("rollout", "reward", "update", "eval")
    seconds = {n: sum(m.get(f"time/{n}", 0.0) for m in metrics) for n in names}
    total = sum(seconds.values()) or 1.0
    cells = "".join(f"<td class=n>{s:.1f} s ({100 * s / total:.0f}%)</td>" for s in seconds.values())
    heads = "".join(f"<th class=n>{n}</th>" for n in names)
    return f"<h2>Where the time went</h2><div class=scroll><table><tr>{heads}</tr><tr>{cells}</tr></table></div>"


def _completions(folder: Path) -> str:
    files = sorted(folder.glob("rollouts/step-*.jsonl"), key=lambda p: int(p.stem.removeprefix("step-")))
    if not files:
        return ""
    parts = []
    for label, file in (("first", files[0]), ("last", files[-1])):
        records = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]
        step = file.stem.removeprefix("step-")
        rows = [_completion_row(r) for r in records[:: max(1, len(records) // SHOWN)][:SHOWN]]
        parts.append(
            f"<h2>Completions of the {label} iteration ({step})</h2><div class=scroll><table><thead><tr><th>prompt</th>"
            "<th>completion</th><th class=n>reward</th><th class=n>r</th><th class=n>NFE</th></tr></thead>"
            f"<tbody>{''.join(rows)}</tbody></table></div>"
        )
    return "".join(parts)


def _completion_row(record: dict[str, Any]) -> str:
    prompt = record["prompt"]
    if not isinstance(prompt, str):
        prompt = "\n".join(f"{m['role']}: {m['content']}" for m in prompt)
    kind = "good" if record["reward"] > 0 else "bad"
    return (
        f"<tr><td><pre>{_text(prompt.strip())}</pre></td><td><pre class={kind}>{_text(record['completion'])}</pre></td>"
        f"<td class=n>{record['reward']:.2f}</td><td class=n>{record['r']:.2f}</td>"
        f"<td class=n>{record['nfe']}</td></tr>"
    )


def _config_text(folder: Path) -> str:
    return (folder / "config.yaml").read_text(encoding="utf-8")
