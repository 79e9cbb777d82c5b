"""What `lfpo sft` and `lfpo dpo` have in common: an iteration is one optimiser step on a batch of examples."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

from lfpo.base import distributed
from lfpo.base.environment import use_threads
from lfpo.config.errors import UserError
from lfpo.config.json import Json
from lfpo.config.training import examples_length
from lfpo.core import collectives
from lfpo.core.encoding import encode_prompt, misfit, unusable
from lfpo.core.optim import take_step
from lfpo.models import MaskedDiffusionLM
from lfpo.prompts.examples import read_examples
from lfpo.prompts.sources import fingerprint, in_epochs
from lfpo.runs.context import Context
from lfpo.runs.display import Output, ProgressLines
from lfpo.train.adamw import build_adamw
from lfpo.train.rates import with_rate
from lfpo.train.run import run_trainer
from lfpo.train.setup import about
from lfpo.train.trainer import Trainer

E = TypeVar("E")

# A function that returns the training example of a number, the same before and after a resume; held-out examples; and
# the number of distinct training examples, 0 where tasks make them without end.
Source = tuple[Callable[[int], E], list[E], int]


def of_data_set(config: Any, example: Callable[[Json, str], E]) -> Source[E]:
    """The source of the data set that a configuration names. example: makes one of a row and where it is from."""
    examples = read_examples(config, example)
    return in_epochs(examples["train"], config.seed), examples["eval"], len(examples["train"])


class ExampleTrainer(Trainer):
    """A trainer whose iteration is one optimiser step on a batch of examples, which the ranks share."""

    def __init__(self, config: Any, model: MaskedDiffusionLM, source: Source[Any]):
        self.model, (self.draw, self.held_out, rows) = model, source
        # Examples of tasks follow from seed and number: only rows of a data set can change between a run and its
        # resume.
        training = fingerprint(self.draw, rows or config.batch_size)
        held_out = fingerprint(self.held_out.__getitem__, len(self.held_out))
        self.data, self.row_fingerprints = training if rows else "", {"training": training, "held-out": held_out}
        self.length = examples_length(config, getattr(config, self.steps_key), batch=config.batch_size, rows=rows)
        self.total_steps = self.length.iterations
        self.user_args, (args, about_rate) = config, with_rate(config, self.kind, model)
        self.args = replace(args, **{self.steps_key: self.total_steps})
        self.state: Json = {"row_offset": 0, "skipped": 0, "skipped_in_a_row": 0}
        self.optimizer, self.about = build_adamw(model, args), f"{about(config, model)}\n{about_rate}"

    def first_of(self, step: int) -> int:
        """The number of a batch's first example."""
        return step * self.args.batch_size + int(self.state["row_offset"])

    def update(self, step: int, loss: float, context: Context) -> Json:
        """One optimiser step with the gradients that are there; its metrics. loss: this rank's part."""
        return take_step(
            *(self.optimizer, self.model, self.args, loss),
            number=step,
            total=self.total_steps,
            state=self.state,
            observer=context.observer,
        )


def own_examples(count: int) -> range:
    """Which of so many examples are this rank's: every world-th. The sum of the ranks' gradients is that of all."""
    return range(collectives.rank(), count, collectives.world())


def train_on_examples(
    make: Callable[[Any], Trainer], config: Any, *, resume: bool = False, report: Callable[[str], None] | None = None
) -> Path:
    """Run the trainer of `lfpo sft` or `dpo` that `make` gives for the configuration; returns the folder of the final
    model, `output_dir/model`. report: takes each line of progress (None: it is printed). SIGTERM or SIGINT leaves a
    checkpoint and raises Stopped, a KeyboardInterrupt."""
    report = report or Output().say
    distributed.start()
    use_threads(config.threads)
    trainer = make(config)
    folder = run_trainer(trainer, resume=resume, display=ProgressLines(trainer.total_steps, report))
    if collectives.rank() == 0:
        report(f"saved {folder}")
    distributed.stop()
    return folder


def encode_example(
    tokenizer: Any,
    model: MaskedDiffusionLM,
    prompt: str | list[dict[str, str]],
    completion: str,
    gen_length: int,
    where: str,
) -> tuple[list[int], list[int]]:
    """Token ids of a prompt, and of its completion padded with EOS to gen_length. Raises UserError, starting with
    `where`, if the prompt has no tokens, or either does not fit or has tokens that no text has."""
    prompt_ids = encode_prompt(tokenizer, prompt, where)
    ids = tokenizer.encode(completion, add_special_tokens=False)
    if reason := misfit(prompt_ids, model, gen_length):
        raise UserError(f"{where}: the prompt cannot be used: {reason}")
    if reason := unusable(ids, model):
        raise UserError(f"{where}: the completion cannot be used: {reason}")
    if len(ids) > gen_length:
        raise UserError(f"{where}: completion has {len(ids)} tokens, more than gen_length {gen_length}; raise it")
    return prompt_ids, ids + [model.eos_id] * (gen_length - len(ids))


def sampled_length(prompt: Sequence[int], completion: Sequence[int], model: MaskedDiffusionLM) -> int:
    """Tokens of a completion as a sampler would have left it: to the end of the block that holds its first EOS. For a
    model with full attention all tokens."""
    if model.block_length is None:
        return len(completion)
    end = through_eos(completion, model)
    return end + -(model.structure.shared(len(prompt)) + end) % model.block_length


def through_eos(completion: Sequence[int], model: MaskedDiffusionLM) -> int:
    """Tokens of a completion up to and including its first EOS."""
    return completion.index(model.eos_id) + 1 if model.eos_id in completion else len(completion)
