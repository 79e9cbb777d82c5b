"""The model card beside saved weights: what they are, how they were made, held-out results, how to use them."""

import json
import re
import shlex
from pathlib import Path

from huggingface_hub import ModelCardData

from lfpo.base.environment import versions
from lfpo.config.build import yaml_text
from lfpo.config.files import user_path
from lfpo.config.json import Json
from lfpo.prompts.sources import default_length
from lfpo.runs.directory import Run, data_of
from lfpo.runs.results import evaluations, interval_text, measure_of, score_text

DESCRIPTION = {
    "train": "A masked diffusion model trained by reinforcement learning with verifiable rewards ({objective}).",
    "dpo": "A masked diffusion model trained on preferences by VRPO (DPO on ELBOs).",
    "sft": "A masked diffusion model trained on demonstrations by the masked diffusion loss.",
}

# What the sections on use say until a run's own length and chat template take their place.
PLAIN = 'tokenizer("YOUR PROMPT", add_special_tokens=False, return_tensors="pt").input_ids'
TEMPLATED = """tokenizer.apply_chat_template(
    [{"role": "user", "content": "YOUR PROMPT"}], add_generation_prompt=True, return_dict=True, return_tensors="pt"
).input_ids"""


def _first_rollout(run: Run) -> Json | None:
    """A rollout of a run, None where none is recorded."""
    recorded = next((run.dir / "rollouts").glob("step-*.jsonl"), None)
    lines = recorded.read_text(encoding="utf-8").splitlines() if recorded else []
    return json.loads(lines[0]) if lines else None


def family_use(run: Run | None = None, config: Json | None = None) -> str:
    """The card's section on the use of weights in their family's layout. Length and chat template are those of the
    run's first recorded rollout; without one the length is that of config."""
    first = _first_rollout(run) if run else None
    length = completion_length(config, run) if config else 64
    chat = " --chat" if first and isinstance(first["prompt"], list) else ""
    return f"""```
lfpo sample --model PATH_TO_THIS_FOLDER --prompt '...' --sampler.gen_length {length}{chat}
lfpo eval --model PATH_TO_THIS_FOLDER {_held_out(config or {})}
```

The files have the names and layout of the model family, so other tools that read the family load them too.
"""


def _held_out(config: Json) -> str:
    """The arguments by which `lfpo eval` measures on what a run was measured on."""
    own = published(config)
    if not own.get("eval_file"):
        return f"--task {own.get('task') or 'TASK'}"
    given = {key: own[key] for key in ("eval_file", "columns", "map_row", "correct") if own.get(key)}
    words = {key: value if isinstance(value, str) else json.dumps(value) for key, value in given.items()}
    return " ".join(f"--{key} {shlex.quote(value)}" for key, value in words.items())


# Also in docs/export.md; a test runs it in a process without lfpo.
SAMPLER = """```python
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

tokenizer = AutoTokenizer.from_pretrained("PATH_TO_THIS_FOLDER")
model = AutoModelForCausalLM.from_pretrained("PATH_TO_THIS_FOLDER")
prompt = tokenizer("YOUR PROMPT", add_special_tokens=False, return_tensors="pt").input_ids
mask, length = tokenizer.mask_token_id, 64
ids = torch.cat([prompt, torch.full((1, length), mask)], dim=1)
block = torch.arange(ids.shape[1]) // getattr(model.config, "block_length", ids.shape[1])
seen = (block[:, None] >= block)[None, None]  # a token sees its own block and those before it
for _ in range(length):
    with torch.no_grad():
        logits = model(ids, attention_mask=seen).logits.double().roll(model.config.logit_shift, dims=1)
    logits[..., mask] = -torch.inf
    confidence, token = logits.softmax(-1).max(-1)
    active = (ids == mask) & (block == block[ids[0] == mask].min())
    surest = confidence.masked_fill(~active, -1).argmax()
    ids[0, surest] = token[0, surest]
print(tokenizer.decode(ids[0, prompt.shape[1] :]).split(tokenizer.decode(model.config.eos_token_id))[0])
```"""


CAUSAL_SAMPLER = """```python
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

tokenizer = AutoTokenizer.from_pretrained("PATH_TO_THIS_FOLDER")
model = AutoModelForCausalLM.from_pretrained("PATH_TO_THIS_FOLDER")
prompt = tokenizer("YOUR PROMPT", add_special_tokens=False, return_tensors="pt").input_ids
mask, size, length = tokenizer.mask_token_id, model.config.block_length, 64
ids = torch.cat([prompt, torch.full((1, length), mask)], dim=1)
place = torch.arange(ids.shape[1])
for start in range(prompt.shape[1], ids.shape[1], size):
    block = (place >= start) & (place < start + size)
    for step in range(size):
        seen = (place[:, None] >= place) | (block[:, None] & block & (step > 0))
        with torch.no_grad():
            logits = model(ids, attention_mask=seen[None, None]).logits[0].double()
        logits[:, mask] = -torch.inf
        confidence, token = logits.softmax(-1).max(-1)
        surest = confidence.masked_fill(~block | (ids[0] != mask), -1).argmax()
        if step:
            ids[0, surest] = token[surest]
        else:  # the causal pass predicts the block's first token
            ids[0, start] = token[start - 1]
print(tokenizer.decode(ids[0, prompt.shape[1] :]).split(tokenizer.decode(model.config.eos_token_id))[0])
```"""


def transformers_use(architecture: str, shift: bool, block_length: int | None, *, causal: bool) -> str:
    """The card's section on the use of weights in transformers' layout. causal: over a causal context."""
    if causal:
        return f"""These are the weights of a `{architecture}` of transformers 5.2 or later, without remote code.

- With its own causal mask the model is an autoregressive one, and `generate()` applies.
- As a diffusion model it denoises blocks of {block_length} tokens over that causal context: give the mask, as below.
  Logits of a block predict its own tokens, those of the context the next one. The text below takes a block's first
  token from the context and then fills in the most confident one at each step.

{CAUSAL_SAMPLER}
"""
    attention = "`is_causal: false` in config.json makes the attention bidirectional."
    if block_length:
        attention = f"The attention is bidirectional within blocks of {block_length} tokens and causal between them: "
        attention += "give the mask, as below."
    shifted = "The logits at position i predict token i (`logit_shift: 0`)."
    if shift:
        shifted = "The logits at position i predict token i + 1, so the sampler shifts them by one (`logit_shift: 1`)."
    return f"""These are the weights of a `{architecture}` of transformers 5.2 or later, without remote code.

- {attention}
- {shifted}
- `generate()` does not apply: a masked diffusion model fills in mask tokens. The text below fills in the most confident
  one at each step.

{SAMPLER}
"""


def published(config: Json) -> Json:
    """A run's configuration without folders of this machine: paths are cut to their last part (a trained model's to
    RUN/model), output_dir is left out."""
    base = config.get("model")
    if base and user_path(base).exists():  # of runs/mine/model also the run's name
        parts = Path(base).parts
        base = "/".join(parts[-2:] if parts[-1] == "model" else parts[-1:])

    def shortened(value: object) -> object:
        """Absolute paths cut, also in lists and in the files of a task (NAME@train=PATH,test=PATH)."""
        if isinstance(value, list):
            return [shortened(item) for item in value]
        return re.sub(r"(^|[@=])[/~][^,]*/", r"\1", value) if isinstance(value, str) else value

    return {key: shortened(value) for key, value in config.items() if key != "output_dir"} | {"model": base}


def completion_length(config: Json, run: Run | None = None) -> int:
    """The completion length of a run in tokens: that of a recorded rollout, else of its configuration."""
    if run is not None and (first := _first_rollout(run)) is not None:
        return len(first["token_ids"])
    length = config.get("gen_length") or (config.get("sampler") or {}).get("gen_length")
    return int(length or default_length(config.get("task")))


def _header(library: str, *tags: str, base: str | None = None) -> str:
    """The metadata that model hubs read. library: what the hub says loads the weights. base: a hub id."""
    tagged = ["masked-diffusion", "lfpo", *tags]
    data = ModelCardData(base_model=base, library_name=library, pipeline_tag="text-generation", tags=tagged)
    return f"---\n{data}\n---\n"


def converted_card(name: str, use: str, library: str) -> str:
    """README.md for exported weights that are not a run's. library: what the hub says loads them."""
    return f"{_header(library)}\n# {name}\n\nExported by lfpo from `{name}`.\n\n## Use\n\n{use}"


def model_card(
    run: Run,
    config: Json,
    kind: str,
    use: str | None = None,
    *,
    step: int | None = None,
    library: str = "lfpo",
    chat: bool = False,
) -> str:
    """README.md for the weights of a run: Markdown under the metadata that model hubs read.

    config: the run's resolved configuration. kind: "train", "sft" or "dpo". use: the section on how to use the files
    (None: that of `family_use`).
    step: the iteration of the weights (None: the last). library: what the hub says loads them. chat: whether the
    tokenizer has a chat template.
    """
    use = family_use(run, config) if use is None else use
    use = re.sub(
        r"((mask_token_id|config\.block_length),) 64$", rf"\1 {completion_length(config, run)}", use, flags=re.M
    )
    if chat:
        use = use.replace(PLAIN, TEMPLATED)
    metrics = [row for row in run.read_metrics() if step is None or row["step"] <= step]
    given = config.get("model")
    # A hub's page links to its base model by id, which a folder does not have.
    on_hub = given and "/" in given and not user_path(given).exists()
    config = published(config)
    base = config["model"]
    data = data_of(config) or ", ".join(config.get("tasks") or {}) or "rows given in Python"
    return f"""{_header(library, kind, base=base if on_hub else None)}
# {run.dir.resolve().name}

{DESCRIPTION[kind].format(objective=config.get("objective", {}).get("name"))}

- Started from: `{base or "fresh weights"}`
- Data: `{data}`
- Steps: {step if step is not None else metrics[-1]["step"] if metrics else 0}
- Made with: {", ".join(f"{k} {v}" for k, v in versions().items())}

{_results(metrics)}## Use

{use}
## Configuration

```yaml
{yaml_text(config).strip()}
```
"""


def table_cell(text: str) -> str:
    """Text as it is written in a cell of a Markdown table, where "|" ends the cell."""
    return " ".join(text.splitlines()).replace("|", "\\|")


def _results(metrics: list[Json]) -> str:
    """The first and the last evaluation, as a table; empty where there is none."""
    by_step = [(line["step"], evaluations(line)) for line in metrics]
    found = [(step, samplers) for step, samplers in by_step if any("nfe" in values for values in samplers.values())]
    if not found:
        return ""
    (start, first), (end, last) = found[0], found[-1]

    def cell(values: Json | None) -> str:
        if not values:
            return "-"  # a sampler that was added on resuming has no first evaluation
        interval = f" ({interval_text(values)})" if interval_text(values) else ""
        return f"{score_text(values).replace('%', ' %')}{interval}"

    rows = [
        f"| `{table_cell(name)}` | {cell(first.get(name))} | {cell(values)} | {values['nfe']:.1f} |\n"
        for name, values in last.items()
    ]
    measures = " and ".join(sorted({measure_of(values) for values in last.values()})).replace("reward", "mean reward")
    return f"""## Held-out results

{measures.capitalize()} with its 95 % interval at step {start} and step {end}, by the samplers below.

| sampler | before | after | forwards a completion |
| --- | ---: | ---: | ---: |
{"".join(rows)}
"""
