"""The model card beside saved weights: what they are, how they were made, held-out results, how to load them."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from huggingface_hub import ModelCardData

from lfpo.base.config import yaml_text
from lfpo.base.environment import versions
from lfpo.runs.directory import Run

DESCRIPTION = {
    "train": "A masked diffusion model trained by reinforcement learning with verifiable rewards ({objective}).",
    "sft": "A masked diffusion model trained on demonstrations by the masked diffusion loss.",
}


def model_card(run: Run, config: dict[str, Any], kind: str) -> str:
    """README.md for the weights of a run: Markdown under the metadata that model hubs read.

    config: the run's resolved configuration. kind: "train" or "sft". Local paths are cut to their last part, since the
    card is published with the weights.
    """
    metrics = run.read_metrics()
    base = config.get("model")
    base = Path(base).name if base and Path(base).expanduser().exists() else base
    config = {key: _without_folders(value) for key, value in config.items() if key != "output_dir"} | {"model": base}
    tasks = ", ".join(config.get("tasks") or {})
    data = config.get("task") or config.get("data_file") or tasks or "rows given in Python"
    header = ModelCardData(
        base_model=base if base and "/" in base else None,
        library_name="lfpo",
        pipeline_tag="text-generation",
        tags=["masked-diffusion", "lfpo", kind],
    )
    return f"""---
{header}
---

# {run.dir.resolve().name}

{DESCRIPTION[kind].format(objective=config.get("objective", {}).get("name"))}

- Started from: `{base or "fresh weights"}`
- Data: `{data}`
- Steps: {metrics[-1]["step"] if metrics else 0}
- Made with: {", ".join(f"{k} {v}" for k, v in versions().items())}

{_results(metrics)}## Use

```
lfpo sample --model PATH_TO_THIS_FOLDER --prompt '...' --sampler.gen_length 64
lfpo eval --model PATH_TO_THIS_FOLDER --task TASK
```

The files have the names and layout of the model family, so other tools that read the family load them too.

## Configuration

```yaml
{yaml_text(config).strip()}
```
"""


def _without_folders(value: Any) -> Any:
    """Absolute paths cut to their last part, also in lists and in the files of a task (NAME@train=PATH,test=PATH)."""
    if isinstance(value, list):
        return [_without_folders(item) for item in value]
    return re.sub(r"(^|[@=])[/~][^,]*/", r"\1", value) if isinstance(value, str) else value


def _results(metrics: list[dict[str, Any]]) -> str:
    """The first and the last evaluation that has accuracies, as a table; empty where there is none."""
    evaluations = [m for m in metrics if any(re.fullmatch("eval/.*/accuracy", key) for key in m)]
    if not evaluations:
        return ""
    first, last = evaluations[0], evaluations[-1]
    rows = [
        f"| `{name}` | {_percent(first, name)} | {_percent(last, name)} | {last[f'eval/{name}/nfe']:.1f} |\n"
        for name in re.findall("eval/(.*)/accuracy", "\n".join(last))
    ]
    return f"""## Held-out results

Accuracy with its 95 % interval at step {first["step"]} and step {last["step"]}, by the samplers below.

| sampler | before | after | forwards a completion |
| --- | ---: | ---: | ---: |
{"".join(rows)}
"""


def _percent(row: dict[str, Any], sampler: str) -> str:
    """Accuracy and interval; a sampler that was added on resuming has no first evaluation."""
    if f"eval/{sampler}/accuracy" not in row:
        return "-"
    value, low, high = (100 * row[f"eval/{sampler}/{key}"] for key in ("accuracy", "low", "high"))
    return f"{value:.1f} % ({low:.1f} to {high:.1f})"
