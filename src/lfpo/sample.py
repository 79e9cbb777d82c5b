"""`lfpo sample`: one prompt, one completion, and on request how it was filled in."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from rich.console import Console
from rich.text import Text

from .errors import UserError
from .models import load_model, load_tokenizer
from .prompts import encode_rows
from .rng import key
from .rollout import rollout
from .sampler import SamplerConfig
from .tasks import get_task
from .trajectory import Trajectory

# Early to late, chosen to differ in lightness too.
COLOURS = ("#2b6cb0", "#2c9faf", "#38a169", "#b7a41c", "#dd6b20", "#c53030")


@dataclass
class SampleConfig:
    """Configuration of `lfpo sample`.

    prompt: the prompt's text; or task: a prompt of that task's test split (--index says which).
    chat: put the prompt through the model's chat template.
    sampler: how the completion is denoised. show_steps: print the state after each step that revealed something.
    """

    prompt: str | None = None
    task: str | None = None
    index: int = 0
    model: str = "embedded"
    chat: bool = False
    sampler: SamplerConfig = field(default_factory=SamplerConfig)
    seed: int = 0
    show_steps: bool = False

    def __post_init__(self) -> None:
        if (self.prompt is None) == (self.task is None):
            raise ValueError("give either 'prompt' or 'task'")


def run_sample(config: SampleConfig, console: Console | None = None) -> None:
    """Sample and print the completion, with steps and NFE."""
    console = console or Console()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    model, tokenizer = load_model(config.model, device=device), load_tokenizer(config.model)
    default_length = 128
    if config.task is not None:
        task = get_task(config.task)
        prompt: Any = task.row("test", config.index)["prompt"]
        default_length = task.gen_length
    else:
        # A shell cannot easily type a line break; \n in the argument stands for one.
        prompt = (config.prompt or "").replace("\\n", "\n")
        if config.chat:
            prompt = [{"role": "user", "content": prompt}]
    try:
        sampler = config.sampler.for_length(default_length)
    except ValueError as error:
        raise UserError(f"lfpo sample: sampler: {error}") from error
    ids = encode_rows([{"prompt": prompt}], tokenizer, model, sampler.gen_length or 0)
    trajectory = rollout(model, ids, sampler, [key(config.seed, "sample")])
    shown = prompt if isinstance(prompt, str) else prompt[0]["content"]
    console.print(Text(shown.rstrip("\n"), style="dim"))
    if config.show_steps:
        for step in trajectory.distinct_steps(0).tolist():
            line = Text(f"step {step:>4}  ", style="dim")
            console.print(line + state_text(trajectory, tokenizer, step + 1))
    length = int(trajectory.lengths[0])
    text = tokenizer.decode(trajectory.tokens[0, :length], skip_special_tokens=True)
    console.print(text, markup=False, highlight=False)
    sure = float(trajectory.confidence[0, :length].mean())
    console.print(
        f"{int(trajectory.scheduled_steps[0])} steps, {int(trajectory.nfe[0])} forwards, "
        f"{length} of {sampler.gen_length} tokens, mean confidence {sure:.2f}",
        style="dim",
        highlight=False,
    )


def state_text(trajectory: Trajectory, tokenizer: Any, before_step: int) -> Text:
    """Row 0's completion before a step: masks as dim dots, tokens coloured by when they were revealed."""
    state = trajectory.state_before(torch.tensor([before_step]).to(trajectory.tokens.device))[0].tolist()
    reveal = trajectory.reveal_step[0].tolist()
    steps = trajectory.distinct_steps(0).tolist()
    text, length = Text(), int(trajectory.lengths[0])
    for token, step in zip(state[:length], reveal, strict=False):
        if token == trajectory.mask_id:
            text.append("·", style="dim")
        elif token == trajectory.eos_id:
            text.append("▪", style="dim")
        else:
            colour = COLOURS[steps.index(step) * len(COLOURS) // len(steps)]
            fresh = step == before_step - 1
            piece = tokenizer.decode([token]).replace("\n", "↵")
            text.append(piece, style=f"bold reverse {colour}" if fresh else colour)
    return text
