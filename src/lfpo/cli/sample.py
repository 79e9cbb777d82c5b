"""`lfpo sample`: denoise one prompt; print the completion, on request every step, and the verdict of a task."""

from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from rich.text import Text

from lfpo.base.spacing import evenly_spaced
from lfpo.base.terminal import Terminal
from lfpo.config.errors import UserError
from lfpo.config.json import Json
from lfpo.config.sample import SampleConfig
from lfpo.core.encoding import encode_rows
from lfpo.core.engine import Request
from lfpo.core.forward import block_sizes
from lfpo.core.rng import key
from lfpo.core.trajectory import Trajectory
from lfpo.eval.evaluate import finite
from lfpo.eval.terminal import progress
from lfpo.models import load_model, load_tokenizer
from lfpo.prompts.sources import PromptSource, kept_columns, make_source
from lfpo.prompts.tokenizer import token_texts
from lfpo.rewards.answers import marked_answer
from lfpo.rewards.sudoku import grid_digits
from lfpo.rollout.sampling import as_it_is

SHOWN = 24  # most states that are printed
COLOURS = ("#2b6cb0", "#2c9faf", "#38a169", "#b7a41c", "#dd6b20", "#c53030")  # early to late; lightness differs too


def run_sample(config: SampleConfig) -> None:
    """Sample and print the completion with its steps and forwards (NFE); of a held-out prompt also its verdict or
    reward."""
    console, source = Terminal(), None
    if config.prompt is None:
        source = make_source(config, seed=config.seed, n_eval=config.index + 1, splits=["eval"])
        if config.index >= len(source.eval_rows):
            count = len(source.eval_rows)
            raise UserError(f"lfpo sample: index {config.index}: {source.name!r} has {count} held-out rows")
    device = "cuda" if torch.cuda.is_available() else "cpu"
    dtype = getattr(torch, config.dtype)
    model, tokenizer = load_model(config.model, dtype=dtype, device=device), load_tokenizer(config.model)
    # A shell cannot easily type a line break; \n in the argument stands for one.
    row = source.eval_rows[config.index] if source else {"prompt": (config.prompt or "").replace("\\n", "\n")}
    prompt: Any = row["prompt"]
    if config.chat and isinstance(prompt, str):
        prompt = [{"role": "user", "content": prompt}]
    elif source is None and tokenizer.chat_template:
        Terminal(stderr=True).print("the model has a chat template; --chat true applies it", style="dim")
    length = source.gen_length if source else PromptSource.gen_length
    sampler = config.sampler.fitted("lfpo sample: sampler", length, model.block_length)
    ids = encode_rows([{"prompt": prompt}], tokenizer, model, sampler.gen_length)
    engine = as_it_is(model)
    with progress("sampling", 1, "completions", Terminal(stderr=True)) as state:
        engine.forwarded = state.forward
        trajectory = finite(engine.sample(Request(ids, [key(config.seed, "sample")], sampler)), model)
    shown = prompt if isinstance(prompt, str) else prompt[0]["content"]
    console.print(Text(shown.rstrip("\n"), style="dim"))
    if config.show_steps:
        print_steps(trajectory, tokenizer, console)
    length = int(trajectory.lengths[0])
    text = tokenizer.decode(trajectory.tokens[0, :length], skip_special_tokens=True)
    console.print("\n".join(map(printable, text.split("\n"))), highlight=False)
    if source is not None:
        judged = source.judge([row], [text], trajectory.for_rewards())
        for name, why in judged.failed.items():
            raise UserError(f"{name!r} failed: {why}")
        if source.verify is None:
            console.print(f"reward: {judged.values[0]}", style="bold", highlight=False)
        else:
            print_verdict(row, text, judged.values[0], console)
        for name, value in kept_columns(row).items():
            console.print(Text(f"{name}: {value}", style="dim"))
    sure = float(trajectory.final_confidence[0, :length].mean())
    console.print(
        f"{int(trajectory.scheduled_steps[0])} steps, {int(trajectory.nfe[0])} forwards, "
        f"{length} of {sum(block_sizes(len(ids[0]), sampler, model))} tokens, mean confidence {sure:.2f}",
        style="dim",
        highlight=False,
    )


def print_verdict(row: Json, completion: str, correct: bool | float | None, console: Console) -> None:
    """Print the verdict on a task's row; under a 4x4 Sudoku also the grids, with wrong digits in red."""
    if "puzzle" in row and (filled := grid_digits(marked_answer(completion) or completion)):
        table = Table(box=None, padding=(0, 4, 0, 0), header_style="dim")
        for title in ("puzzle", "completion", "solution"):
            table.add_column(title)
        clues = "".join(c if c in "1234" else "·" for c in row["puzzle"])
        table.add_row(_grid(clues, clues), _grid(filled, row["solution"]), _grid(row["solution"], row["solution"]))
        console.print(table)
    text, style = ("right", "bold green") if correct else ("wrong", "bold red")
    if correct is None:
        text, style = "this machine cannot judge it", "bold"
    console.print(Text("verdict: ").append(text, style=style))


def _grid(digits: str, expected: str) -> Text:
    """16 digits as four rows of two boxes each; those that are not as expected in red."""
    text = Text()
    for i, (digit, right) in enumerate(zip(digits, expected, strict=True)):
        text.append(digit, style="" if digit == right else "bold red reverse")
        end = "" if i == 15 else "\n────┼────\n" if i == 7 else "\n" if i % 4 == 3 else " │ " if i % 4 == 1 else " "
        text.append(end, style="dim")
    return text


def print_steps(trajectory: Trajectory, tokenizer: object, console: Console) -> None:
    """Print the states of row 0, one under the other. Long text wraps within its own column."""
    if (revised := trajectory.revised_states()) is not None:
        print_revised(revised, tokenizer, console)
        return
    steps = trajectory.distinct_steps()[0].tolist()
    legend = Text("revealed ", style="dim")
    for colour in COLOURS:
        legend.append("■", style=colour)
    console.print(legend.append(" early to late", style="dim"))
    shown = evenly_spaced(steps, SHOWN)
    if len(shown) < len(steps):
        console.print(f"{len(shown)} of {len(steps)} states", style="dim", highlight=False)
    for step in shown:
        table = Table.grid(padding=(0, 1))
        number = Text(f"step {step:>{len(str(steps[-1]))}}", style="dim")
        table.add_row(number, state_text(trajectory, tokenizer, step + 1))
        console.print(table)


def print_revised(states: list[tuple[str, list[int], list[int]]], tokenizer: object, console: Console) -> None:
    """Print states whose tokens are revised (Trajectory.revised_states); tokens that are those of the end stand out."""
    shown = evenly_spaced(states, SHOWN)
    if len(shown) < len(states):
        console.print(f"{len(shown)} of {len(states)} states", style="dim", highlight=False)
    for name, tokens, final in shown:
        text = Text()
        for token, last, piece in zip(tokens, final, token_texts(tokenizer, tokens), strict=True):
            text.append(printable(piece), style="bold" if token == last else "dim")
        table = Table.grid(padding=(0, 1))
        table.add_row(Text(name, style="dim"), text)
        console.print(table)


def state_text(trajectory: Trajectory, tokenizer: object, before_step: int) -> Text:
    """Row 0's completion before a step, up to its first EOS: masks as dim dots, tokens coloured by the step that
    revealed them. Those that the step before has written stand out."""
    step_B = torch.tensor([before_step]).to(trajectory.tokens.device)
    texts = token_texts(tokenizer, trajectory.tokens_before(step_B)[0, : int(trajectory.lengths[0])].tolist())
    state = trajectory.state_before(step_B)[0].tolist()
    reveal, written = trajectory.reveal_step[0].tolist(), trajectory.written_by(step_B - 1, step_B - 1)[0].tolist()
    numbers = {step: i for i, step in enumerate(trajectory.distinct_steps()[0].tolist())}
    text = Text()
    for token, step, fresh, piece in zip(state, reveal, written, texts, strict=False):
        if token == trajectory.mask_id:
            text.append("·", style="dim")
        elif token == trajectory.eos_id:
            text.append("▪", style="dim")
        else:
            colour = COLOURS[numbers[step] * len(COLOURS) // len(numbers)]
            text.append(printable(piece), style=f"bold reverse {colour}" if fresh else colour)
    return text


def printable(text: str) -> str:
    """Text without control characters, which could change the terminal: each is replaced by a visible symbol."""
    return "".join(
        "↵" if c == "\n" else chr(0x2400 + ord(c)) if ord(c) < 32 else "␡" if c == "\x7f" else c for c in text
    )
