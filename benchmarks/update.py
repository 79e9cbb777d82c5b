"""Benchmark `update`: time and memory of the loss, of training iterations and of padding, beside the plain form."""

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from benchmarks.iteration import Iteration, measure_iterations
from benchmarks.measure import against_first, attempt, deadline, measured, write_results
from benchmarks.table import markdown, rows_of_cells
from lfpo.base.environment import use_threads
from lfpo.config.checks import Count, CountOrZero, NotNegative, check_ranges
from lfpo.config.files import replace_file
from lfpo.config.sampler import SamplerConfig
from lfpo.core.encoding import encode_rows
from lfpo.core.fused import rectified_sum
from lfpo.core.head import precision_of
from lfpo.core.learner import accumulate_gradients
from lfpo.core.model import CURRENT, OLD
from lfpo.core.predictions import Predictions
from lfpo.core.rectified import rectified_loss
from lfpo.core.rng import key
from lfpo.core.trajectory import Trajectory
from lfpo.core.views import passes
from lfpo.models import MaskedDiffusionLM, load_model, load_tokenizer
from lfpo.objectives import make_objective
from lfpo.prompts.tasks import get_task
from lfpo.rollout.sampling import rollout

Case = Callable[[], float]
TIMESTEPS = 4  # K of every case
LAYOUTS = ("padded to the longest", "like lengths together")  # of ragged rows
# More training iterations of the first size: label -> keys of the training configuration.
FORMS: dict[str, dict[str, Any]] = {
    "LoRA, rank 16": {"lora": {"r": 16}},
    "dual cache": {"sampler": {"cache": "dual", "block_length": 8}},
}
ON_GPU: dict[str, dict[str, Any]] = {
    "without autocast": {"bf16": False},
    "compiled rollouts": {"rollout_compile": True},
}


@dataclass
class BenchUpdateConfig:
    """Configuration of `python -m benchmarks update`.

    tokens, vocabulary, width, dtype: the loss alone: masked tokens, vocabulary (at least 512), hidden size (a multiple
        of 32), and dtype of the hidden states and the head.
    sizes: training iterations: timesteps K (always 4) times rollouts N of each. They run on a random model of two
        layers with that vocabulary and a quarter of that width, each in a process of its own. The first size also runs
        with LoRA and with the dual cache; on a GPU, without autocast and with compiled rollouts.
    update_tokens: budget of a pass, in the iterations and over ragged prompts.
    model, prompts: ragged prompts: the model, and the number of prompts, of three embedded tasks in turn.
    budget: minutes after which no case is started; rows say what was not run (0: no limit).
    repeats: timings of each case, in turn; the table has the median. threads: CPU threads.
    output: folder for update.json and update.md.
    """

    tokens: Count = 2048
    vocabulary: Count = 126464
    width: Count = 1024
    dtype: str = "float32"
    sizes: list[int] = field(default_factory=lambda: [8, 32, 128, 256])
    update_tokens: Count = 256
    model: str = "embedded"
    prompts: Count = 48
    budget: NotNegative = 0.0
    repeats: Count = 3
    threads: CountOrZero = 1
    output: str = "runs/bench"

    def __post_init__(self) -> None:
        check_ranges(self)
        if self.dtype not in ("float32", "bfloat16"):
            raise ValueError(f"dtype {self.dtype!r} must be float32 or bfloat16")
        if not self.sizes or any(size < 2 * TIMESTEPS or size % TIMESTEPS for size in self.sizes):
            raise ValueError(f"'sizes' must hold multiples of {TIMESTEPS} from {2 * TIMESTEPS} up, found {self.sizes}")
        if self.vocabulary < 512:
            raise ValueError(f"vocabulary {self.vocabulary} must be at least 512, to hold the prompt's tokens")
        if self.width % 32:
            raise ValueError(f"width {self.width} must be a multiple of 32: four heads share a quarter of it")


def run_bench_update(config: BenchUpdateConfig) -> Path:
    """Measure, print and write; returns the path of the JSON."""
    use_threads(config.threads)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    end = deadline(config.budget)
    rows = measure("loss", loss_cases(config, device), device, config.repeats, end)
    rows += measure_iterations(iteration_cases(config, device), end)
    rows += ragged_rows(config, device, end)
    path = write_results(config, "update", rows)
    _tables(rows, path.with_suffix(".md"))
    return path


def measure(group: str, cases: dict[str, Case], device: torch.device, repeats: int, end: float) -> list[dict[str, Any]]:
    """The row of each case, with ratios to the group's first. Each case returns its loss."""
    losses, taken = measured(cases, device, repeats, end)
    rows = [{"group": group, "case": label, "loss": losses.get(label), **taken[label]} for label in cases]
    return against_first(rows)


def ragged_rows(config: BenchUpdateConfig, device: torch.device, end: float) -> list[dict[str, Any]]:
    """The rows of the padding cases; if their rollouts cannot run, the rows say so."""
    made = attempt(lambda: dict(zip(("cases", "padding"), padding_cases(config, device), strict=True)), end)
    if "failed" in made:
        return [{"group": "ragged prompts", "case": label, **made} for label in LAYOUTS]
    rows = measure("ragged prompts", made["cases"], device, config.repeats, end)
    return [{**row, "padding": made["padding"][row["case"]]} for row in rows]


def loss_cases(config: BenchUpdateConfig, device: torch.device) -> dict[str, Case]:
    """The rectified loss and the gradient of its hidden states.

    plain: full logits. fused: in chunks. The old policy has a head of its own or shares the current one's; r is
    anywhere in [0, 1], or 0 and 1 only.
    """
    rng = torch.Generator().manual_seed(0)
    dtype = getattr(torch, config.dtype)
    precision = precision_of("auto", device, dtype)  # as in training

    def random(*shape: int, std: float) -> torch.Tensor:
        return (torch.randn(*shape, generator=rng) * std).to(device, dtype)

    hidden = random(config.tokens, config.width, std=0.5)
    reference = hidden + random(config.tokens, config.width, std=0.05)
    head = random(config.vocabulary, config.width, std=0.05)
    own = head + random(1, config.width, std=0.001)
    y = torch.randint(config.vocabulary, (config.tokens,), generator=rng).to(device)
    r = torch.rand(config.tokens, generator=rng).to(device)

    def plain(head_ref: torch.Tensor, r_T: torch.Tensor) -> float:
        states = hidden.detach().requires_grad_()
        z, z_ref = (states @ head.T).float(), (reference @ head_ref.T).float()
        loss = rectified_loss(z, z_ref, y, r_T, beta=0.3).sum()
        loss.backward()
        return loss.item()

    def fused(head_ref: torch.Tensor, r_T: torch.Tensor) -> float:
        states = hidden.detach().requires_grad_()
        loss = rectified_sum(states, reference, head, head_ref, y, r_T, beta=0.3, precision=precision)
        loss.backward()
        return loss.item()

    binary = (r > 0.5).float()
    return {
        "plain": lambda: plain(own, r),
        "fused": lambda: fused(own, r),
        "fused, one head": lambda: fused(head, r),
        "fused, one head, r 0 or 1": lambda: fused(head, binary),
    }


def iteration_cases(config: BenchUpdateConfig, device: torch.device) -> dict[str, Iteration]:
    """A training iteration at each of the configured sizes, and other forms of the first one."""

    def case(size: int, **settings: Any) -> Iteration:
        return Iteration(
            timesteps=TIMESTEPS,
            rollouts=size // TIMESTEPS,
            update_tokens=config.update_tokens,
            vocabulary=config.vocabulary,
            width=config.width // 4,
            repeats=config.repeats,
            threads=config.threads,
            settings=settings,
        )

    cases = {f"K x N = {size}": case(size) for size in config.sizes}
    first = config.sizes[0]
    for label, settings in {**FORMS, **(ON_GPU if device.type == "cuda" else {})}.items():
        cases[f"K x N = {first}, {label}"] = case(first, **settings)
    return cases


def padding_cases(config: BenchUpdateConfig, device: torch.device) -> tuple[dict[str, Case], dict[str, float]]:
    """One optimiser step's gradient over prompts of several tasks, with two layouts of the same views: all padded to
    the longest, like lengths together. Also returns the padding's share of the tokens that each layout computes."""
    model = load_model(config.model, device=device)
    batch = _task_rollouts(config, model, ["choice", "words", "sudoku"])
    parts = objective, policies, signal, views = _parts(model, batch)
    width = views.input_ids.shape[1]
    in_turn = list(torch.arange(len(views), device=device).split(max(1, config.update_tokens // width)))

    def padded() -> float:
        model.zero_grad()
        total = 0.0
        for index in in_turn:
            predictions = Predictions(views.select(index), policies)
            loss = objective.loss(predictions, signal)[0] / objective.normalizer(views)
            loss.backward()
            total += loss.item()
        return total

    lengths = views.attention_mask.sum(-1)
    alike = passes(views, config.update_tokens)
    together = sum(len(index) * int(lengths[index].max()) for index in alike)
    computed = (len(views) * width, together)
    cases = (padded, _step(config, parts))
    padding = [1 - int(lengths.sum()) / tokens for tokens in computed]
    return dict(zip(LAYOUTS, cases, strict=True)), dict(zip(LAYOUTS, padding, strict=True))


def _task_rollouts(config: BenchUpdateConfig, model: MaskedDiffusionLM, tasks: list[str]) -> Trajectory:
    tokenizer = load_tokenizer(config.model)
    chosen = [get_task(name) for name in tasks]
    gen_length = max(task.gen_length for task in chosen)
    rows = [chosen[i % len(chosen)].row("train", i) for i in range(config.prompts)]
    prompts = encode_rows(rows, tokenizer, model, gen_length)
    sampler = SamplerConfig(gen_length=gen_length, temperature=1.0, threshold=0.5)
    return rollout(model, prompts, sampler, list(range(config.prompts)))


def _parts(model: MaskedDiffusionLM, batch: Trajectory) -> tuple[Any, dict[str, Any], Any, Any]:
    objective = make_objective({"name": "lfpo", "timesteps": TIMESTEPS})
    policies = {CURRENT: model, OLD: model.frozen_copy()}
    signal = torch.linspace(0, 1, len(batch), device=model.device)
    views = objective.views(batch.in_rounds(), signal, [key("bench", i) for i in range(len(batch))], 0)
    return objective, policies, signal, views


def _step(config: BenchUpdateConfig, parts: tuple[Any, ...]) -> Case:
    """The training code's own gradient accumulation over the views."""
    objective, policies, signal, views = parts

    def step() -> float:
        policies[CURRENT].zero_grad()
        budget = config.update_tokens
        return accumulate_gradients(objective, policies, views, signal, update_tokens=budget)[0]

    return step


def _tables(rows: list[dict[str, Any]], path: Path) -> None:
    """Print the tables, and write them as Markdown."""

    def cells(row: dict[str, Any]) -> list[str]:
        held, ratio = row["peak_memory"], row["memory_ratio"]
        return [
            row["case"] + _note(row),
            f"{row['seconds']:.2f}",
            f"{row['time_ratio']:.2f}",
            "-" if held is None else f"{held / 2**20:,.0f}",
            "-" if ratio is None else f"{ratio:.3f}",
            f"{row['loss']:.2f}",
        ]

    columns = ("", "s", "time x", "peak MiB", "memory x", "loss")
    text = markdown(columns, rows_of_cells(rows, "case", cells, len(columns)))
    print(text)
    replace_file(path, text)


def _note(row: dict[str, Any]) -> str:
    if "padding" in row:
        return f" ({row['padding']:.0%} padding)"
    return f" ({row['at_rest'] / 2**20:,.0f} MiB at rest)" if row.get("at_rest") is not None else ""
