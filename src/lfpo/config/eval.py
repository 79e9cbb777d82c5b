"""The configuration of `lfpo eval`, and named protocols."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import ClassVar, Literal

from lfpo.config.build import RECIPES, build, load_yaml, merge
from lfpo.config.checks import Count, CountOrZero, check_ranges, refuse
from lfpo.config.data import ProblemConfig
from lfpo.config.errors import UserError, nearest
from lfpo.config.files import user_path
from lfpo.config.json import Json
from lfpo.config.models import ModelName
from lfpo.config.sampler import SamplerConfig
from lfpo.config.tasks import TASKS

Dtype = Literal["float32", "bfloat16"]
# One name for several tasks; their mean is printed too.
GROUPS = {"evalplus": ("humaneval_plus", "mbpp_plus")}


@dataclass
class LmEvalConfig:
    """Arguments of the model "lfpo" in lm-evaluation-harness, besides the sampler's."""

    pretrained: ModelName = "embedded"
    """Checkpoint folder, hub id, or a model that comes with the package."""

    dtype: Dtype = "float32"
    """Of the weights."""

    seed: int = 0
    """The key of all noise."""

    mc_num: Count = 128
    """Noised copies of each likelihood."""

    check_greedy: bool = True
    """Test whether greedy decoding gives the continuation, at one forward a token. Accuracy of multiple choice does not
    need it, LAMBADA's does."""

    rollout_tokens: Count = 16384
    """Rows x length in one forward, in place of batch_size."""

    def __post_init__(self) -> None:
        check_ranges(self)


@dataclass
class EvalConfig(ProblemConfig):
    """Configuration of `lfpo eval`: measures a model on tasks, or on rows of one's own (eval_file, or data_file, or
    dataset_name with dataset_test_split), whose completions `correct` or `reward_funcs` judge."""

    task: str | None = None
    """A task's name or dotted path, several with commas between, "evalplus" (HumanEval+ and MBPP+ and their mean) or
    "all" for the embedded model's tasks."""

    model: ModelName = "embedded"
    """Checkpoint folder, hub id, "embedded", "embedded-block", "embedded-causal" or "embedded-uniform"."""

    protocol: str | None = None
    """Settings by name (recipes/protocols) or from a YAML file; keys given beside it override them. Several with commas
    between are evaluated in turn, each into a folder of its name in `output`, and shown side by side."""

    n: Count | None = None
    """Number of test problems (None: the standard number, or all of a data set). Under torchrun write --limit, since
    torchrun takes --n for an option of its own."""

    n_samples: Count = 1
    """Completions of each problem; more than 1 also gives pass@k."""

    prompt_format: Literal["chat", "text"] = "chat"
    """The model's chat template, or plain text, for base models."""

    sampler: SamplerConfig = field(default_factory=SamplerConfig)
    """How completions are denoised."""

    seed: int = 0
    """The key of all random choices."""

    dtype: Dtype = "float32"
    """Of the weights."""

    rollout_tokens: Count = 16384
    """Tokens computed at once. Memory and speed only, never the result."""

    threads: CountOrZero = 0
    """CPU threads of torch (0: torch's default)."""

    output: str | None = None
    """A folder for TASK.json and its other files, or a .json file for a single task. A task that is finished there is
    not evaluated again. Without it results are only printed."""

    overwrite: bool = False
    """Start again where output holds an evaluation."""

    # lm-evaluation-harness's name. torchrun takes --n for an abbreviation of its own options.
    ALIASES: ClassVar[dict[str, str]] = {"limit": "n"}

    def __post_init__(self) -> None:
        check_ranges(self)
        self.check_data()
        if self.eval_file is None:  # what is measured here is the data
            self.data_file, self.eval_file = None, self.data_file
        n = self.n_samples
        refuse(
            (
                self.dataset_name and not self.dataset_test_split,
                "'dataset_name' needs 'dataset_test_split', the split to measure on",
            ),
            (
                n > 1 and not self.sampler.is_random,
                f"n_samples {n} at temperature 0 gives the same completion {n} times; set sampler.temperature above 0",
            ),
        )

    @property
    def task_names(self) -> list[str]:
        """The tasks in the order given, each once, with groups expanded; empty for rows of one's own."""
        names: list[str] = []
        # A comma also separates the files of one task: gsm8k@train=A,test=B.
        for part in self.task.split(",") if self.task else ():
            if names and "@" in names[-1] and "=" in part:
                names[-1] += f",{part}"
            else:
                names += TASKS if part == "all" else GROUPS.get(part, [part])
        return list(dict.fromkeys(names))

    def each(self) -> list[EvalConfig]:
        """One configuration for each task; this one for rows of one's own."""
        return [replace(self, task=name) for name in self.task_names] or [self]


def configure_each(overrides: Json) -> list[EvalConfig]:
    """A configuration for each of the protocols. Raises UserError."""
    output, protocol = overrides.get("output"), overrides.get("protocol")
    if protocol is None:
        return [configure(overrides)]
    names = list(dict.fromkeys(name.strip() for name in str(protocol).split(",")))
    if len(names) == 1:
        return [configure({**overrides, "protocol": names[0]})]
    folders = [None if output is None else str(Path(output) / Path(name).stem) for name in names]
    return [
        configure({**overrides, "protocol": name, "output": folder})
        for name, folder in zip(names, folders, strict=True)
    ]


def configure(overrides: Json) -> EvalConfig:
    """The configuration from `--key value` pairs, which override the protocol they name, if any. Raises UserError."""
    values: Json = {}
    if (name := overrides.get("protocol")) is not None:
        known = {path.stem: path for path in (RECIPES / "protocols").glob("*.yaml")}
        path = known.get(str(name)) or user_path(str(name))
        if not path.is_file():
            raise UserError(f"protocol {str(name)!r}: no such file{nearest(str(name), known)}")
        values = load_yaml(path)
        values.pop("eval_samplers", None)  # for evaluation during training
    return build(EvalConfig, merge(values, overrides), "lfpo eval")
