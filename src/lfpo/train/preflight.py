"""Checks of a training run that need the model and its tokenizer, before the first forward: prompts, reward functions,
disk room."""

from __future__ import annotations

import dataclasses
import functools
import shutil
from collections.abc import Iterable, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

import torch

from lfpo.config.errors import UserError
from lfpo.config.files import user_path
from lfpo.config.train import LFPOConfig
from lfpo.config.training import Optim, moment_bytes
from lfpo.core import collectives
from lfpo.core.encoding import encode_prompt, misfit
from lfpo.core.model import CURRENT, OLD
from lfpo.models import MaskedDiffusionLM
from lfpo.models.tensor_files import GIB
from lfpo.models.weights import saved_weights
from lfpo.prompts.sources import PromptSource
from lfpo.prompts.tasks import Row
from lfpo.rewards import reward_names
from lfpo.rollout.episodes import Episode, step_all
from lfpo.train.setup import Inputs, Policies, about_device

STAND_IN = "a stand-in completion"


def preflight(args: LFPOConfig, inputs: Inputs, policies: Policies, folder: Path) -> tuple[PromptSource, str]:
    """Check prompts, reward functions and disk room. Returns the source without prompts that are left out, and a few
    lines that say what will run and what was checked. folder: of the run. A collective. Raises UserError."""
    model, reference = policies.by_role[CURRENT], policies.by_role[OLD]
    checked, longest, out = check_prompts(args, inputs, model, policies.tokenizer)
    source = without(inputs.source, out) if out else inputs.source
    inputs = dataclasses.replace(inputs, source=source)
    first, tokenizer = collectives.rank() == 0, policies.tokenizer
    # On rank 0 alone: a reward function may be slow, or cost money.
    failed = collectives.on_every_rank(lambda: check_rewards(args, inputs, tokenizer) if first else [])[0]
    saved = [model, reference] + [model] * bool(args.average_decay)
    keep = args.save_total_limit
    needed, free = collectives.on_every_rank(lambda: check_disk(folder, saved, args.optim, keep))[0]
    parameters, trained = sum(p.numel() for p in model.parameters()), _trained(model)
    share = f", {trained:,} of them trained" if trained < parameters else ""
    ranks = f", {collectives.world()} ranks" if collectives.world() > 1 else ""
    left_out = f"; {len(out)} too long and left out" if out else ""
    if out and source.stream:
        left_out += ", so the others repeat: no more of the stream is read, so leave out long ones when you make it"
    rewarding = source.reward_functions if inputs.environment is None else [inputs.environment.make]
    names = ", ".join(reward_names(rewarding))
    lines = {
        "base": f"{args.model}: {parameters:,} parameters{share}, {str(model.dtype).removeprefix('torch.')}",
        "device": f"{about_device(args, model)}{ranks}",
        "prompts": f"{checked} checked, the longest has {longest} tokens{left_out}",
        "rewards": "; ".join(failed) or f"{names}: called once",
        "disk": f"{needed / GIB:.2f} GiB needed, {free / GIB:.2f} GiB free",
        "folder": args.output_dir,
    }
    return source, "\n".join(f"{name:<8} {value}" for name, value in lines.items())


def check_prompts(
    args: LFPOConfig, inputs: Inputs, model: MaskedDiffusionLM, tokenizer: Any
) -> tuple[int, int, tuple[int, ...]]:
    """Encode every training and held-out prompt; of a task that generates its prompts, those of the first iteration.

    Returns the number of prompts that were checked, the tokens of the longest, and the rows that are left out: with
    args.filter_overlong_prompts training prompts that do not fit. A collective: each rank checks its share. Raises
    UserError, naming file and line, for a row with other columns than the first, and for a prompt that has no tokens,
    holds the mask token or does not fit.
    """
    source = inputs.source
    training = source.rows or [source.train_row(i) for i in range(args.prompts_per_iteration)]

    def share_of(split: str, rows: Sequence[Row], length: int) -> list[tuple[int, int, bool]]:
        """Index and tokens of each of this rank's rows, and whether the row is left out."""
        may_leave_out = split == "train" and args.filter_overlong_prompts and bool(source.rows)
        checked = []
        for i in collectives.own_indices(len(rows)):
            where, prompt = source.place(split, i), rows[i]["prompt"]
            if rows[i].keys() != rows[0].keys():
                columns, first = (", ".join(sorted(row)) for row in (rows[i], rows[0]))
                raise UserError(
                    f"{where}: the columns are {columns}, and those of {source.place(split, 0)} are {first}; give "
                    "every row the same"
                )
            ids = encode_prompt(tokenizer, prompt, where)
            too_long = len(ids) + length > model.max_length
            reason = misfit(ids, model, length)
            if reason and not (too_long and may_leave_out):
                also = ", or set filter_overlong_prompts" if too_long and split == "train" and source.rows else ""
                raise UserError(f"{where}: prompt {str(prompt)[:60]!r}: {reason}{also}")
            checked.append((i, len(ids), bool(reason)))
        return checked

    gen_length = inputs.sampler.gen_length
    eval_length = max((sampler.gen_length for sampler in inputs.eval_samplers.values()), default=0)
    trained = list(chain(*collectives.on_every_rank(lambda: share_of("train", training, gen_length))))
    held_out = list(chain(*collectives.on_every_rank(lambda: share_of("eval", source.eval_rows, eval_length))))
    left_out = tuple(i for i, _, out in trained if out)
    if len(left_out) == len(training):
        raise UserError(f"{source.place('train', 0)}: this prompt and all others are too long for the model")
    longest = max(n for _, n, out in [*trained, *held_out] if not out)
    return len(trained) + len(held_out), longest, left_out


def without(source: PromptSource, indices: Sequence[int]) -> PromptSource:
    """The same prompts without some of `rows`; the others keep their order in each epoch."""
    # By identity: `train_row` gives the objects of `rows` themselves.
    n, dropped = len(source.rows), {id(source.rows[i]) for i in indices}

    @functools.lru_cache(maxsize=1)
    def remaining(epoch: int) -> list[Row]:
        stream = (source.train_row(epoch * n + position) for position in range(n))
        return [row for row in stream if id(row) not in dropped]

    def train_row(index: int) -> Row:
        epoch, position = divmod(index, n - len(dropped))
        return remaining(epoch)[position]

    left = [row for row in source.rows if id(row) not in dropped]
    return dataclasses.replace(source, train_row=train_row, rows=left)


def check_rewards(args: LFPOConfig, inputs: Inputs, tokenizer: Any) -> list[str]:
    """Call each reward function once, with two stand-in completions of each of the first two prompts, or play a turn of
    the environment. The same with held-out rows, where evaluations call the functions too.

    Raises UserError for a function that raised or ran too long, and for a result that no batch could use: not a list,
    of another length, or with a value that is neither a finite number nor None. With args.keep_going a function may
    raise; returns a sentence for each that did.
    """
    source, environment = inputs.source, inputs.environment
    # Two prompts of two completions each, as in a batch.
    splits = {"train": [source.train_row(i) for i in (0, 0, 1, 1)]}
    if source.verify is None or environment is not None:  # else a verifier judges held-out rows
        splits["eval"] = [row for row in source.eval_rows[:2] for _ in range(2)]
    ids, failed = tokenizer.encode(STAND_IN, add_special_tokens=False), list[str]()
    stand_in = {"completion_ids": list(ids), "forwards": len(ids), "reveal_step": list(range(len(ids)))}
    for split, rows in ((split, rows) for split, rows in splits.items() if rows):
        where = (
            "its first call" if split == "train" else f"its first call with held-out rows ({source.place(split, 0)})"
        )
        if environment is not None:
            _, why = step_all(environment, [Episode(0, rows[0], 0)], [STAND_IN])
            failed += [] if why is None else [f"environment {environment.name!r} failed on {where}: {why}"]
            continue
        scored = source.score(rows, [STAND_IN] * len(rows), {name: [v] * len(rows) for name, v in stand_in.items()})
        failed += [f"reward function {name!r} failed on {where}: {why}" for name, why in scored.failed.items()]
    held_out = source.eval_rows[:1]
    if source.verify is not None and args.correct and held_out:
        judged = source.verify(held_out, [STAND_IN], {name: [value] for name, value in stand_in.items()})
        failed += [f"verifier {name!r} failed on its first call: {why}" for name, why in judged.failed.items()]
    if failed and not args.keep_going:
        raise UserError(f"{'; '.join(failed)}; fix it, or set keep_going to train with None for its rewards")
    return failed


def check_disk(folder: Path, saved: Sequence[MaskedDiffusionLM], optim: Optim, keep: int) -> tuple[float, float]:
    """Bytes that the run's checkpoints and exported model still take, and bytes free on the disk of its folder.

    saved: one policy per set of weights in a checkpoint; saved[0] is trained. keep: save_total_limit; while a
    checkpoint is written, as many older ones are there. Raises UserError where they do not fit.
    """
    model, folder = saved[0], user_path(folder).absolute()
    checkpoint = sum(_bytes(policy.own_parameters()) for policy in saved) + _trained(model) * moment_bytes(optim)
    needed = (keep + 1) * checkpoint + _bytes(saved_weights(model).values())  # a LoRA run's export is the whole model
    needed -= sum(p.stat().st_size for p in folder.glob("checkpoints/step-*/**/*") if p.is_file())  # of a resumed run
    free = shutil.disk_usage(next(place for place in (folder, *folder.parents) if place.exists())).free
    if needed > free:
        raise UserError(
            f"{folder}: {keep + 1} checkpoints of {checkpoint / GIB:.2f} GiB and the exported model take "
            f"{needed / GIB:.2f} GiB, and {free / GIB:.2f} GiB are free; free disk space, give an output_dir on "
            "another disk, or lower save_total_limit"
        )
    return needed, free


def _trained(model: MaskedDiffusionLM) -> int:
    return sum(p.numel() for p in model.parameters() if p.requires_grad)


def _bytes(parameters: Iterable[torch.Tensor]) -> float:
    return sum(p.numel() * p.element_size() for p in parameters)
