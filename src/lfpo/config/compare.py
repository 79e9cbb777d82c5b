"""The configuration of `lfpo compare` and the cells of its grid."""

import hashlib
import json
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Annotated, ClassVar

from lfpo.config.build import build, load_yaml, merge, to_dict
from lfpo.config.checks import Count, check_ranges, refuse
from lfpo.config.errors import UserError, nearest
from lfpo.config.files import user_path, writing
from lfpo.config.json import Json
from lfpo.config.objectives import OfObjective, all_settings
from lfpo.config.train import LFPOConfig

BASE = "base"
# The thresholds of a frontier. Below 0.5 a revealed token need not be the most probable one; at 0.998 nearly every
# forward reveals one token.
THRESHOLDS = (0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.98, 0.998)
# Keys that the comparison sets itself, with the setting that decides them.
DECIDED = {"objective": "objectives", "seed": "seeds", "eval_size": "problems"}
DECIDED |= {"threads": "threads", "output_dir": "output_dir"}
# Keys of a training configuration that do not change a result beyond rounding.
NO_EFFECT = {"output_dir", "threads", "update_tokens", "rollout_tokens", "gradient_checkpointing"}
NO_EFFECT |= {"save_steps", "save_total_limit", "log_completions", "report_to", "rank_timeout", "progress_timeout"}
# They decide an untrained model's result.
OF_BASE = ("model", "task", "eval_samplers", "eval_size", "head_precision", "dtype", "bf16", "load_in_4bit")
OF_ROWS: tuple[str, ...] = ("eval_file", "dataset_name", "dataset_config", "dataset_test_split", "columns", "map_row")
OF_ROWS += ("reward_funcs", "reward_weights", "correct")


@dataclass
class CompareConfig:
    """Configuration of `lfpo compare`: every objective trains on one recipe with every seed."""

    REFUSED: ClassVar[dict[str, str]] = {
        key.name: "is a key of lfpo train; give the file by --recipe FILE, one key by --overrides.KEY VALUE"
        for key in fields(LFPOConfig)
    } | {key: f"is decided by the comparison's {decided_by!r}" for key, decided_by in DECIDED.items()}

    recipe: str
    """Training recipe or file, with a task, or rows of one's own and held-out ones."""

    output_dir: str
    """Folder for runs, table and figure. Finished runs in it never run again."""

    objectives: dict[str, Annotated[Json, OfObjective(("config",))]]
    """Label -> settings of an objective ({name: ..., knob: ...}). `config` among them holds keys of the recipe that
    only this objective has ({config: {learning_rate: 1e-5}}). On the command line a list of labels, or of names of
    objectives: `--objectives lfpo,agrpo`."""

    seeds: list[int] = field(default_factory=lambda: [1, 2, 3, 4, 5])
    """Training seeds, the same for each objective, so that differences are paired."""

    first: str = ""
    """Label that the others are compared with ("": the first one)."""

    overrides: Json = field(default_factory=dict)
    """Keys that replace the recipe's for all objectives."""

    curve_sampler: str = "threshold"
    """The eval sampler, of the recipe or `greedy` or `threshold`, whose accuracy is measured while training, every
    `eval_steps`."""

    thresholds: list[float] = field(default_factory=lambda: list(THRESHOLDS))
    """Confidence thresholds that each trained model decodes at, for accuracy over forwards."""

    problems: Count = 500
    """Number of held-out problems, at most: a data set with fewer gives all of them."""

    workers: Count = 1
    """Runs at once."""

    threads: Count = 1
    """CPU threads of each run."""

    dry_run: bool = False
    """Print the runs and which of them are finished, and train nothing."""

    def __post_init__(self) -> None:
        check_ranges(self)
        self.output_dir = str(user_path(self.output_dir))
        refuse(
            (len(set(self.seeds)) < max(1, len(self.seeds)), f"'seeds' must be different numbers, found {self.seeds}"),
            (not self.objectives, "'objectives' must not be empty"),
            (
                not self.thresholds or any(not 0 < t <= 1 for t in self.thresholds),
                f"'thresholds' must be numbers above 0 and at most 1, found {self.thresholds}",
            ),
        )
        self.first = self.first or next(iter(self.objectives))
        near = nearest(self.first, self.objectives)
        refuse((self.first not in self.objectives, f"'first' {self.first!r} is not among the objectives{near}"))
        for label, settings in self.objectives.items():
            own, name = settings.get("config", {}), f"objective {label!r}"
            refuse((label == BASE or "/" in label, f"{name}: a label must not be {BASE!r} and must not contain '/'"))
            for key in DECIDED:
                said = f"{key!r} {self.REFUSED[key]}"
                refuse((key in self.overrides, f"overrides: {said}"), (key in own, f"{name}: config: {said}"))
            all_settings({key: value for key, value in settings.items() if key != "config"})


def check_folder(config: CompareConfig) -> None:
    """Raise UserError for a folder that holds something else than a comparison."""
    path = Path(config.output_dir)
    with writing(path, "; give another output_dir"):
        if path.exists() and not (path / "cells").is_dir() and (path.is_file() or any(path.iterdir())):
            raise UserError(f"{path}: exists already and holds no comparison; give another output_dir")


def pick_objectives(values: Json, labels: str | list[str]) -> Json:
    """`--objectives a,b` on the command line: keep these labels of the file, or add objectives by their names."""
    names = [name.strip() for name in (labels.split(",") if isinstance(labels, str) else labels)]
    listed, first = values.get("objectives", {}), values.get("first", "")
    picked = {name: listed.get(name, {"name": name}) for name in names}
    return {**values, "objectives": picked, "first": first if first in picked else ""}


@dataclass(frozen=True)
class Cell:
    """One training run of the grid, or (objective "base") an evaluation of the untrained model."""

    objective: str
    seed: int = 0

    @property
    def label(self) -> str:
        return self.objective if self.objective == BASE else f"{self.objective}, seed {self.seed}"


def cells(config: CompareConfig) -> list[Cell]:
    """All cells, seed by seed, so that a grid that is stopped early has all objectives."""
    return [Cell(BASE), *(Cell(label, seed) for seed in config.seeds for label in config.objectives)]


def cell_config(config: CompareConfig, cell: Cell) -> LFPOConfig:
    """The training configuration of a cell. Raises UserError when recipe, overrides or objective are not valid."""
    values = merge(load_yaml(config.recipe), config.overrides)
    if cell.objective != BASE:
        own = dict(config.objectives[cell.objective])
        values = merge(values, own.pop("config", {}))
        values["objective"] = own
    values |= {"seed": cell.seed, "threads": config.threads, "eval_size": config.problems, "output_dir": "-"}
    built = build(LFPOConfig, values, f"lfpo compare: {cell.label}")
    chosen, named = config.curve_sampler, {**LFPOConfig("-").eval_samplers, **built.eval_samplers}
    for lacking, why in (
        (
            not (built.task or built.eval_file or built.dataset_test_split),
            "has no held-out problems; give 'task', or 'eval_file' or 'dataset_test_split'",
        ),
        (chosen not in named, f"has no eval sampler {chosen!r}{nearest(chosen, named)}"),
        (not built.eval_steps, "eval_steps 0 switches evaluation off, which a comparison needs"),
    ):
        if lacking:
            raise UserError(f"recipe {config.recipe}: {why}")
    built.eval_samplers = {chosen: named[chosen]}
    return built


def cell_folder(config: CompareConfig, cell: Cell) -> Path:
    """The folder of a cell. Its name ends with a hash of the settings that decide the result: a cell with other
    settings has another folder."""
    values = to_dict(cell_config(config, cell))
    if cell.objective == BASE:
        lengths = {name: values["sampler"][name] for name in ("block_length", "gen_length")}
        deciding = {name: values[name] for name in OF_BASE} | lengths
        deciding |= {name: values[name] for name in OF_ROWS if values["task"] is None}
    else:
        deciding = {name: value for name, value in values.items() if name not in NO_EFFECT}
    if values["correct"] is None:  # the key is younger than grids that go on
        deciding.pop("correct", None)
    key = hashlib.sha256(json.dumps([deciding, config.thresholds], sort_keys=True).encode()).hexdigest()[:8]
    name = cell.label.replace(", ", "-").replace(" ", "-")
    return Path(config.output_dir) / "cells" / f"{name}-{key}"
