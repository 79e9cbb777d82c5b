"""The keys that say what a command trains or measures on: a task, or rows of a data set with reward functions."""

from dataclasses import dataclass, field
from typing import ClassVar

from lfpo.config.checks import Count, CountOrZero, NotNegative, Seconds, refuse
from lfpo.config.tasks import TaskName


@dataclass
class DataConfig:
    """Rows of one's own, from a file or a data set of the hub."""

    data_file: str | None = None
    """Rows: a file of JSONL, JSON, CSV, TSV, Parquet or Arrow, a pattern such as data/*.jsonl, or a folder that
    `datasets` saved."""

    eval_file: str | None = None
    """Held-out rows of the same kind."""

    dataset_name: str | None = None
    """A data set of the hub, ORGANISATION/NAME, or a local folder that `datasets` reads."""

    dataset_config: str | None = None
    """The configuration of that data set, where it has several."""

    dataset_train_split: str = "train"
    """The split to train on; "train[:1000]" takes a part."""

    dataset_test_split: str | None = None
    """The held-out split (None: there are no held-out rows)."""

    columns: dict[str, str] = field(default_factory=dict)
    """{question: prompt}: columns of the rows to rename."""

    map_row: str | None = None
    """Dotted path of a function that makes a row of a row, as a dict with the columns that the command takes."""

    def check_rows(self, task: object) -> None:
        """Raise ValueError for keys of rows that do not go together. task: what makes rows in place of a data set."""
        of_name = self.dataset_config or self.dataset_test_split
        refuse(
            (task and (self.columns or self.map_row), "'columns' or 'map_row' goes with the rows of a data set"),
            (of_name and not self.dataset_name, "'dataset_test_split' goes with 'dataset_name'"),
        )


@dataclass
class ExampleConfig(DataConfig):
    """What `lfpo sft` and `lfpo dpo` train on: demonstrations of generated tasks, or rows of one's own."""

    ALIASES: ClassVar[dict[str, str]] = {"dataset": "data_file", "lr": "learning_rate"}

    tasks: dict[str, float] = field(default_factory=dict)
    """Generated tasks and their share of the examples. Give one of tasks, data_file and dataset_name."""

    gen_length: Count = 64
    """Completion length of a data set's rows in tokens; tasks have their own."""

    batch_size: Count = 64
    """Examples of each step."""

    eval_size: CountOrZero = 200
    """Held-out examples of an evaluation."""

    def check_data(self) -> None:
        """Raise ValueError for keys that do not go together."""
        refuse(
            (
                sum(map(bool, (self.tasks, self.data_file, self.dataset_name))) != 1,
                "give one of 'tasks', 'data_file' and 'dataset_name'",
            ),
            (min(self.tasks.values(), default=1) <= 0, f"the shares of 'tasks' must be positive, found {self.tasks}"),
            (self.eval_file and not self.data_file, "'eval_file' goes with 'data_file'"),
        )
        self.check_rows(self.tasks)


@dataclass
class ProblemConfig(DataConfig):
    """What is trained and measured on: a task, which brings rows, rewards and a verifier, or rows of one's own with
    reward functions, of which one may be the verifier. lfpo.prompts.sources.make_source resolves it."""

    task: TaskName | None = None
    """A task's name or dotted path. Give one of task, data_file and dataset_name."""

    reward_funcs: list[str] = field(default_factory=list)
    """Dotted paths of reward functions (`module.function`); without them the task's own reward is used, or
    `correct` of a data set."""

    reward_weights: list[float] | None = None
    """One weight a function (None: all 1)."""

    correct: str | None = None
    """Dotted path of the reward function that says whether a completion is right: a reward of 1 or more is, None is not
    judged. Held-out results of a data set are then accuracies; without it they are mean rewards. A task brings its own
    verifier."""

    reward_timeout: Seconds = 1800.0
    """Seconds that one function may take for a batch; past it, its rewards of that batch are None (0: no limit). With
    `environment`, for a rank's environments in one turn."""

    reward_memory: NotNegative = 0.0
    """GiB that one function may hold. It then runs in a child process, which is killed past this limit or past
    reward_timeout (0: it runs in the command's own process, without a limit)."""

    def check_data(self) -> None:
        """Raise ValueError for keys that do not go together."""
        sources = (self.task, self.data_file, self.dataset_name)
        refuse(
            (sum(map(bool, sources)) > 1, "give one of 'task', 'data_file' and 'dataset_name'"),
            (self.task and self.correct, "'correct' is for the rows of a data set; a task brings its own verifier"),
        )
        self.check_rows(self.task)
