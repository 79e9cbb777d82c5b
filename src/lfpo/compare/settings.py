"""The configuration of `lfpo compare` and the cells of its grid."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from lfpo.base.checks import at_least_one
from lfpo.base.config import build, load_yaml, merge
from lfpo.base.errors import UserError, nearest
from lfpo.compare.endpoints import THRESHOLDS
from lfpo.objectives import OBJECTIVES
from lfpo.prompts.tasks import VALIDATION, Task, get_task
from lfpo.rollout.sampler import SamplerConfig
from lfpo.train.config import LFPOConfig

BASE = "base"
# Keys that the comparison sets itself, with the setting that decides them.
DECIDED = {
    "learning_rate": "learning_rates",
    "seed": "tuning_seeds or evaluation_seeds",
    "eval_size": "problems",
    "threads": "threads",
    "output_dir": "output_dir",
}


@dataclass
class Arm:
    """One part of a grid: each of its objectives on each of its recipes, with each of its seeds.

    recipes: training recipes, one a task. objectives: labels of the comparison's objectives.
    overrides: keys over the comparison's own, such as another rollout regime; those of `objective` come over the
        objectives' settings and chosen knobs.
    choice: "" to tune here, or "ARM/RECIPE": use the learning rate and knob that were chosen there.
    seeds: how many of the evaluation seeds it runs, the first ones. note: one sentence for the tables.
    """

    recipes: list[str]
    objectives: list[str]
    overrides: dict[str, Any] = field(default_factory=dict)
    choice: str = ""
    seeds: int = 10
    note: str = ""

    def __post_init__(self) -> None:
        if not self.recipes or not self.objectives:
            raise ValueError("'recipes' and 'objectives' must not be empty")
        at_least_one(self, "seeds")
        if len({recipe_name(r) for r in self.recipes}) < len(self.recipes):
            raise ValueError(f"'recipes' {self.recipes} must have different file names")


@dataclass
class CompareConfig:
    """Configuration of `lfpo compare`.

    output_dir: folder for cells, tables and figures.
    store: file of finished cells, compressed JSON, which may be committed; a cell that is in it is never run again
        ("": cells.json.gz in output_dir).
    objectives: label -> objective settings ({name: ..., knob: ...}). On the command line a list of labels selects some.
    learning_rates, trials: what is tried for each objective, on the tuning seeds and validation problems: every rate
        with the objective's own settings, then, at the best rate, each of trials[label], settings that replace some of
        them; `config` among them holds keys of the training configuration ({config: {ema_decay: 0.5}}). The choice is
        the trial with the best mean area under the frontier. All labels in `trials` have the same number. With one
        rate and no trials nothing is tuned.
    rate_of: label -> label whose rate it takes; it is not tuned itself.
    arms: name -> a part of the grid. On the command line `--only a,b` selects some.
    overrides: keys that replace the same keys of every recipe, so that all cells have equal rollouts and evaluations.
    recipe_overrides: recipe -> keys over `overrides` for this recipe, in all arms. For a key that is
        set here, `--overrides.KEY` does not change this recipe; `--recipe_overrides.RECIPE.KEY` does.
    curve_sampler: the eval sampler of learning curves. thresholds: those of the frontier. samplers: more eval samplers
        of the recipes that the trained models are evaluated under.
    tuning_seeds, evaluation_seeds: disjoint. validation, problems: numbers of validation and test problems. Validation
        problems are of the training split.
    hold_out: whether runs for tuning leave out the solutions of validation problems (generated tasks). If not, a choice
        may favour what memorises.
    gradients: arms whose gradient noise is measured.
    target: label whose best level the others have to reach, if any. first: label that the others are compared with.
    baseline: arm that the other arms on its recipes are compared with, objective by objective, if any.
    workers: cells that run at once. threads: CPU threads of each.
    dry_run: print cells, FLOPs and core-hours, and train nothing.
    """

    output_dir: str
    objectives: dict[str, dict[str, Any]]
    arms: dict[str, Arm]
    learning_rates: list[float]
    store: str = ""
    trials: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    rate_of: dict[str, str] = field(default_factory=dict)
    overrides: dict[str, Any] = field(default_factory=dict)
    recipe_overrides: dict[str, dict[str, Any]] = field(default_factory=dict)
    curve_sampler: str = "threshold"
    samplers: list[str] = field(default_factory=list)
    thresholds: list[float] = field(default_factory=lambda: list(THRESHOLDS))
    tuning_seeds: list[int] = field(default_factory=lambda: [1, 2, 3])
    evaluation_seeds: list[int] = field(default_factory=lambda: list(range(100, 110)))
    validation: int = 500
    hold_out: bool = True
    problems: int = 500
    gradients: list[str] = field(default_factory=list)
    first: str = "lfpo"
    target: str | None = None
    baseline: str | None = None
    workers: int = 1
    threads: int = 1
    dry_run: bool = False

    def __post_init__(self) -> None:
        if not self.objectives or not self.arms:
            raise ValueError("'objectives' and 'arms' must not be empty")
        at_least_one(self, "validation", "problems", "workers", "threads")
        self.output_dir = str(Path(self.output_dir).expanduser())
        if not self.learning_rates or len({f"{rate:g}" for rate in self.learning_rates}) < len(self.learning_rates):
            raise ValueError(f"'learning_rates' must be one or more different values, found {self.learning_rates}")
        if not self.thresholds or any(not 0 < t <= 1 for t in self.thresholds):
            raise ValueError(f"'thresholds' must be numbers above 0 and at most 1, found {self.thresholds}")
        if shared := set(self.tuning_seeds) & set(self.evaluation_seeds):
            raise ValueError(f"seed {min(shared)} is both a tuning seed and an evaluation seed")
        if not self.evaluation_seeds or not self.tuning_seeds:
            raise ValueError("'tuning_seeds' and 'evaluation_seeds' must not be empty")
        for label, knobs in self.objectives.items():
            if "name" not in knobs:
                raise ValueError(f"objective {label!r} has no 'name'")
            if label == BASE or "/" in label:
                raise ValueError(f"objective {label!r}: a label must not be {BASE!r} and must not contain '/'")
        self._check_labels()
        self._check_overrides()
        for name in self.gradients:
            if name not in self.arms:
                raise ValueError(f"'gradients' names {name!r}, which is not among the arms{nearest(name, self.arms)}")
        if self.baseline is not None and self.baseline not in self.arms:
            near = nearest(self.baseline, self.arms)
            raise ValueError(f"'baseline' names {self.baseline!r}, which is not among the arms{near}")
        if len({len(t) for t in self.trials.values()}) > 1:
            raise ValueError(
                "'trials' must have the same number for every objective, found "
                + ", ".join(f"{len(t)} for {label}" for label, t in self.trials.items())
            )
        for name, arm in self.arms.items():
            if arm.seeds > len(self.evaluation_seeds):
                raise ValueError(f"arm {name!r}: {arm.seeds} seeds, and there are {len(self.evaluation_seeds)}")
            if arm.choice:
                self._check_choice(name, arm)

    def _check_labels(self) -> None:
        """Every label that is named somewhere is an objective."""
        named = {f"arm {name!r}": arm.objectives for name, arm in self.arms.items()}
        named |= {"'trials'": list(self.trials), "'rate_of'": [*self.rate_of, *self.rate_of.values()]}
        named |= {"'first'": [self.first], "'target'": [self.target] if self.target is not None else []}
        for where, labels in named.items():
            for label in labels:
                if label not in self.objectives:
                    near = nearest(label, self.objectives)
                    raise ValueError(f"{where} names {label!r}, which is not among the objectives{near}")

    def _check_overrides(self) -> None:
        """Recipes exist, and no key is one that the comparison sets itself."""
        for recipe in self.recipe_overrides:
            load_yaml(str(recipe))  # an unknown recipe is an error
        given = {"overrides": self.overrides}
        given |= {f"recipe_overrides {recipe!r}": keys for recipe, keys in self.recipe_overrides.items()}
        for where, keys in given.items():
            if "objective" in keys:
                raise ValueError(f"{where}: 'objective' is decided by 'objectives', or in an arm by its overrides")
        given |= {f"arm {name!r}: overrides": arm.overrides for name, arm in self.arms.items()}
        for where, keys in given.items():
            if decided := [key for key in DECIDED if key in keys]:
                raise ValueError(f"{where}: {decided[0]!r} is decided by the comparison's {DECIDED[decided[0]]!r}")

    def _check_choice(self, name: str, arm: Arm) -> None:
        there, slash, recipe = arm.choice.partition("/")
        other = self.arms.get(there)
        if other is None or not slash or recipe not in {recipe_name(r) for r in other.recipes} or other.choice:
            raise ValueError(
                f"arm {name!r}: 'choice' {arm.choice!r} must be ARM/RECIPE of an arm that tunes that recipe itself"
            )
        for label in arm.objectives:
            if (tuned := self.rate_of.get(label, label)) not in other.objectives:
                raise ValueError(f"arm {name!r}: {tuned!r} is not tuned in arm {there!r}")


def pick_objectives(values: dict[str, Any], labels: str | list[str]) -> dict[str, Any]:
    """`--objectives a,b` on the command line: keep these labels of the file, or add objectives by their names.

    Every arm then has those of them that it had, and the new ones. Raises UserError for an unknown label.
    """
    names = labels.split(",") if isinstance(labels, str) else labels
    listed = values.get("objectives") or {}
    if not isinstance(listed, dict):
        raise UserError(f"lfpo compare: objectives: expected label: {{name: ...}} pairs, found {listed!r}")
    picked = {}
    for name in (str(n).strip() for n in names):
        if name not in listed and name not in OBJECTIVES and not set(".:") & set(name):
            known = list(dict.fromkeys([*listed, *OBJECTIVES]))
            raise UserError(f"--objectives: unknown {name!r}{nearest(name, known)}")
        picked[name] = listed.get(name, {"name": name})
    new = [name for name in picked if name not in listed]
    arms = {}
    for arm, part in (values.get("arms") or {}).items():
        kept = [label for label in [*part.get("objectives", []), *new] if label in picked]
        if kept:
            arms[arm] = {**part, "objectives": kept}
    rates = {a: b for a, b in (values.get("rate_of") or {}).items() if a in picked and b in picked}
    trials = {label: tried for label, tried in (values.get("trials") or {}).items() if label in picked}
    target = values.get("target") if values.get("target") in picked else None
    first = values.get("first", "lfpo")
    return {
        **values,
        "baseline": values.get("baseline") if values.get("baseline") in arms else None,
        "gradients": [arm for arm in values.get("gradients") or [] if arm in arms],
        "objectives": picked,
        "arms": arms,
        "rate_of": rates,
        "trials": trials,
        "target": target,
        "first": first if first in picked else next(iter(picked)),
    }


def pick_arms(values: dict[str, Any], names: str) -> dict[str, Any]:
    """`--only a,b` on the command line: the arms of these names, and those whose choice they use.

    Raises UserError for an unknown name.
    """
    arms = values.get("arms") or {}
    wanted = [name.strip() for name in str(names).split(",")]
    for name in wanted:
        if name not in arms:
            raise UserError(f"--only: unknown arm {name!r}{nearest(name, arms)}")
    wanted += [arms[name].get("choice", "").partition("/")[0] for name in wanted]
    kept = {name: arm for name, arm in arms.items() if name in wanted}
    return {
        **values,
        "arms": kept,
        "baseline": values.get("baseline") if values.get("baseline") in kept else None,
        "gradients": [name for name in values.get("gradients") or [] if name in kept],
    }


@dataclass(frozen=True)
class Cell:
    """One training run of the grid, or (objective "base") an evaluation of the untrained model.

    knobs: settings of a trial over the objective's own, as JSON; `config` holds keys of the training configuration.
    tuning: evaluated on validation problems only.
    """

    arm: str
    recipe: str
    objective: str
    learning_rate: float
    seed: int
    knobs: str = "{}"
    tuning: bool = False

    @property
    def setting(self) -> str:
        """Where the cell is compared with others: the recipe's name, with the arm's where it is another."""
        return f"{self.arm}/{recipe_name(self.recipe)}"

    @property
    def label(self) -> str:
        if self.objective == BASE:
            return f"{self.setting} / base"
        knobs = "".join(f" / {knob}" for knob in knob_names(self.knobs))
        kind = " (tuning)" if self.tuning else ""
        return f"{self.setting} / {self.objective}{knobs} / lr {self.learning_rate:g} / seed {self.seed}{kind}"


def knob_names(knobs: str) -> list[str]:
    """A trial's settings, given as JSON, as `name value`; those of `config` like the others."""
    found = json.loads(knobs)
    config = found.pop("config", {})
    return [f"{name} {value}" for name, value in {**found, **config}.items()]


def recipe_name(recipe: str) -> str:
    """A recipe's name in tables and file names: its file name without folder and suffix."""
    return Path(recipe).stem


def cell_config(config: CompareConfig, cell: Cell) -> LFPOConfig:
    """The training configuration of a cell. Raises UserError when recipe, overrides or objective are not valid.

    Its evaluations are those of the learning curve; tuning cells and the base have none.
    """
    values = merge(load_yaml(cell.recipe), config.overrides)
    overrides = config.arms[cell.arm].overrides
    for recipe, keys in config.recipe_overrides.items():
        if recipe_name(recipe) == recipe_name(cell.recipe):
            values = merge(values, keys)
    values = merge(values, overrides)
    trained = cell.objective != BASE
    if trained:
        own = {**config.objectives[cell.objective], **json.loads(cell.knobs)}
        values = merge(values, own.pop("config", {}))
        values["objective"] = {**own, **overrides.get("objective", {})}
        values["learning_rate"] = cell.learning_rate
    values |= {"seed": cell.seed, "threads": config.threads, "eval_size": config.problems, "output_dir": "-"}
    built = build(LFPOConfig, values, f"lfpo compare: {cell.label}")
    if built.task is None:
        raise UserError(f"recipe {cell.recipe}: has no 'task', whose verifier a comparison needs")
    for name in (config.curve_sampler, *config.samplers):
        if name not in built.eval_samplers:
            near = nearest(name, built.eval_samplers)
            raise UserError(f"recipe {cell.recipe}: has no eval sampler {name!r}{near}")
    built.eval_samplers = {name: built.eval_samplers[name] for name in (config.curve_sampler, *config.samplers)}
    if not built.eval_steps:
        raise UserError(f"recipe {cell.recipe}: eval_steps 0 switches evaluation off, which a comparison needs")
    if cell.tuning or not trained:
        built.eval_steps = 0
    task = get_task(built.task)
    if cell.tuning and config.hold_out and isinstance(task, Task) and not task.validating:
        built.task += VALIDATION
    return built


def frontier_sampler(sampler: SamplerConfig, threshold: float) -> SamplerConfig:
    """Greedy decoding at a threshold, in the blocks and with the early stop of an eval sampler."""
    return SamplerConfig(
        threshold=threshold,
        block_length=sampler.block_length,
        early_stop=sampler.early_stop,
        early_stop_threshold=sampler.early_stop_threshold,
    )
