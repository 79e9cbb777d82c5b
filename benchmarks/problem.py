"""What `python -m benchmarks rollout` samples: a model, its prompts, and how completions are scored."""

from collections.abc import Callable
from dataclasses import dataclass, field

import torch

from lfpo.config.checks import Count, CountOrZero, NotNegative, check_ranges
from lfpo.core.completions import decode_completions
from lfpo.core.encoding import encode_rows
from lfpo.core.rng import python_rng
from lfpo.models import MaskedDiffusionLM, init_model, load_model, load_tokenizer
from lfpo.models.layouts import LAYOUTS, with_layers
from lfpo.prompts.tasks import get_task


@dataclass
class BenchRolloutConfig:
    """Configuration of `python -m benchmarks rollout`.

    model: checkpoint folder, hub id, "embedded", or a layout with random weights (llada-8b, dream-7b). A random model
        clears no threshold and writes no EOS, so a layout is measured with fixed numbers of tokens a step only.
    layers: keep only the first layers of a layout, to try it where the whole does not fit.
    tasks: prompts come from these in turn. A layout has random tokens instead, 3/4 to all of prompt_length.
    n: number of prompts. generations: completions of each prompt.
    gen_length, block_length, prompt_length: tokens (gen_length None: the longest of the tasks; 256 for a layout;
        block_length None: the model's own, or 8).
    causal_blocks: run a model with full attention as one that attends block by block, to measure speed with stored
        blocks; its tokens are meaningless then. Models that do so anyway are always measured in this way.
    tokens_per_step: for layouts, how many tokens each step reveals.
    lora: rank of the adapters in the rows with LoRA (0: no such rows).
    compile: rows with compiled forwards (default: on a GPU).
    budget: minutes after which no mode is started; rows say what was not run (0: no limit).
    repeats: timings of each mode, in turn so that a slow moment of the machine falls on all; the table has the median.
    rollout_tokens, threads, dtype: as in training.
    output: folder for rollout.json and rollout.md.
    """

    model: str = "embedded"
    layers: int | None = None
    tasks: list[str] = field(default_factory=lambda: ["words", "countdown", "expression"])
    n: Count = 64
    generations: Count = 1
    prompt_length: Count = 256
    gen_length: int | None = None
    block_length: Count | None = None
    causal_blocks: bool = False
    tokens_per_step: list[int] = field(default_factory=lambda: [1, 3])
    lora: CountOrZero = 16
    compile: bool | None = None
    budget: NotNegative = 0.0
    repeats: Count = 3
    rollout_tokens: Count = 16384
    threads: CountOrZero = 1
    dtype: str = "float32"
    output: str = "runs/bench"

    def __post_init__(self) -> None:
        check_ranges(self)
        if not self.tokens_per_step or min(self.tokens_per_step) < 1:
            raise ValueError(f"tokens_per_step {self.tokens_per_step} must be one or more numbers, each at least 1")
        if self.dtype not in ("float32", "bfloat16"):
            raise ValueError(f"dtype {self.dtype!r} must be float32 or bfloat16")
        if not self.tasks and self.model not in LAYOUTS:
            raise ValueError("'tasks' must name at least one task")


@dataclass(frozen=True)
class Problem:
    """What all modes work on. score: share of right completions, None for random weights."""

    model: MaskedDiffusionLM
    prompts: list[list[int]]
    gen_length: int
    score: Callable[[torch.Tensor], float] | None


def task_problem(config: BenchRolloutConfig) -> Problem:
    """Test problems of the tasks in turn, scored by the task that each one belongs to."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    model = load_model(config.model, dtype=getattr(torch, config.dtype), device=device)
    tokenizer = load_tokenizer(config.model)
    tasks = [get_task(name) for name in config.tasks]
    gen_length = config.gen_length or max(task.gen_length for task in tasks)
    owners = [tasks[i % len(tasks)] for i in range(config.n)]
    rows = [task.row("test", i // len(tasks)) for i, task in enumerate(owners)]
    prompts = encode_rows(rows, tokenizer, model, gen_length)

    def score(tokens_BC: torch.Tensor) -> float:
        texts = decode_completions(tokenizer, tokens_BC, model.eos_id)
        right = [owners[i // config.generations].correct(t, rows[i // config.generations]) for i, t in enumerate(texts)]
        return sum(right) / len(right)

    return Problem(model, [p for p in prompts for _ in range(config.generations)], gen_length, score)


def layout_problem(config: BenchRolloutConfig) -> Problem:
    """Random prompts for a published layout with random weights."""
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    model = random_model(config.model, config.layers, device, getattr(torch, config.dtype))
    prompts = random_prompts(config.n, config.prompt_length, model)
    return Problem(model, [p for p in prompts for _ in range(config.generations)], config.gen_length or 256, None)


def random_model(layout: str, layers: int | None, device: torch.device, dtype: torch.dtype) -> MaskedDiffusionLM:
    """A randomly initialised model of a published shape, with `layers` layers (None: all)."""
    return init_model(with_layers(LAYOUTS[layout], layers), seed=0, device=device, dtype=dtype)


def random_prompts(n: int, longest: int, model: MaskedDiffusionLM) -> list[list[int]]:
    """n prompts of random ordinary tokens; lengths are uniform from 3/4 of `longest` to `longest`."""
    rng = python_rng("bench prompts", n, longest)
    lengths = [rng.randint(max(1, 3 * longest // 4), longest) for _ in range(n)]
    return [[rng.randrange(100, min(100_000, model.vocab_size - 3)) for _ in range(length)] for length in lengths]
