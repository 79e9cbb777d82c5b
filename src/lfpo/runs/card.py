"""The model card beside saved weights: what they are, how they were made, how well they did, how to load them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from lfpo.base.environment import versions
from lfpo.runs.directory import Run

DESCRIPTION = {
    "train": "A masked diffusion model trained by reinforcement learning with verifiable rewards ({objective}).",
    "sft": "A masked diffusion model trained on demonstrations by the masked diffusion loss.",
}


def model_card(run: Run, config: dict[str, Any], kind: str) -> str:
    """README.md for the weights of a run, as Markdown with the metadata block that model hubs read.

    config: the run's configuration, resolved. kind: "train" or "sft".
    """
    objective = config.get("objective", {}).get("name")
    data = (
        config.get("task") or config.get("data_file") or ", ".join(config.get("tasks") or {}) or "rows given in Python"
    )
    metrics = run.read_metrics()
    # A card is made to be passed on: it names folders of this machine by their last part only.
    base = config.get("model")
    base = Path(base).name if base and Path(base).expanduser().exists() else base
    config = {key: value for key, value in config.items() if key != "output_dir"} | {"model": base}
    header = {"library_name": "lfpo", "pipeline_tag": "text-generation", "tags": ["masked-diffusion", "lfpo", kind]}
    if base and "/" in base:
        header["base_model"] = base
    lines = [
        "---",
        yaml.safe_dump(header, sort_keys=False).strip(),
        "---",
        "",
        f"# {run.dir.resolve().name}",
        "",
        DESCRIPTION[kind].format(objective=objective),
        "",
        f"- Started from: `{base or 'fresh weights'}`",
        f"- Data: `{data}`",
        f"- Steps: {metrics[-1]['step'] if metrics else 0}",
        f"- Made with: {', '.join(f'{k} {v}' for k, v in versions().items())}",
        "",
        *_results(metrics),
        "## Use",
        "",
        "```",
        "lfpo sample --model PATH_TO_THIS_FOLDER --prompt '...' --sampler.gen_length 64",
        "lfpo eval --model PATH_TO_THIS_FOLDER --task TASK",
        "```",
        "",
        "The files have the names and layout of the model family, so other tools that read the family load them too.",
        "",
        "## Configuration",
        "",
        "```yaml",
        yaml.safe_dump(config, sort_keys=False, allow_unicode=True).strip(),
        "```",
    ]
    return "\n".join(lines) + "\n"


def _results(metrics: list[dict[str, Any]]) -> list[str]:
    """A table of the last evaluation beside the first, where the run made any."""
    rows = [m for m in metrics if any(key.startswith("eval/") for key in m)]
    if not rows:
        return []
    first, last = rows[0], rows[-1]
    names = [k.split("/")[1] for k in last if k.endswith("/accuracy")]
    if not names:
        return []
    table = [
        f"| `{name}` | {_percent(first, name)} | {_percent(last, name)} | {last[f'eval/{name}/nfe']:.1f} |"
        for name in names
    ]
    return [
        "## Held-out results",
        "",
        f"Accuracy with its 95 % interval at step {first['step']} and step {last['step']}, by the samplers below.",
        "",
        "| sampler | before | after | forwards a completion |",
        "| --- | ---: | ---: | ---: |",
        *table,
        "",
    ]


def _percent(row: dict[str, Any], name: str) -> str:
    value, low, high = (100 * row[f"eval/{name}/{key}"] for key in ("accuracy", "low", "high"))
    return f"{value:.1f} % ({low:.1f} to {high:.1f})"
