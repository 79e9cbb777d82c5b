"""Supervised training of a masked diffusion model by the standard loss (LLaDA, arXiv 2502.09992, Eq. 5).

For each example draw t ~ U(0, 1), mask every completion token with probability t (the prompt stays clean), and
minimise the cross-entropy at masked positions weighted by 1/t. Completions are padded with EOS to gen_length.

A model that attends block by block is trained on [noised; clean], as SDAR and LLaDA2 are: each block is predicted from
its own noised tokens and the clean blocks before it, all blocks in one forward. There completions are padded to the end
of the block with their first EOS, which is where rollouts end. Over a causal context the same forward gives a second
loss, of each token up to the first EOS after the clean ones before it; the first loss counts `masked_loss_weight`.

Where noise is uniform over the vocabulary, random tokens stand in place of masks, every token of the completion counts,
and half of the examples are conditioned on a first prediction without gradients (see lfpo.contrib.canvases.noise).
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import torch

from lfpo.config.errors import UserError
from lfpo.config.json import Json
from lfpo.config.sft import SFTConfig
from lfpo.core import collectives
from lfpo.core.doubled import noised_hidden, training_structure
from lfpo.core.forward import left_pad
from lfpo.core.fused import rectified_sum
from lfpo.core.model import CURRENT
from lfpo.core.passes import with_dummy_passes
from lfpo.core.predictions import one_pass
from lfpo.core.rng import generator, python_rng
from lfpo.core.views import pack_by_tokens
from lfpo.models import MaskedDiffusionLM, init_model
from lfpo.models.policies import load_policies
from lfpo.prompts.examples import demonstration
from lfpo.prompts.tasks import get_task
from lfpo.prompts.tokenizer import train_tokenizer
from lfpo.runs.context import Context
from lfpo.train.examples import (
    ExampleTrainer,
    Source,
    encode_example,
    of_data_set,
    own_examples,
    sampled_length,
    through_eos,
    train_on_examples,
)
from lfpo.train.setup import check_ranks

MIN_T = 1e-3  # keeps 1/t finite; LLaDA uses the same bound


# Token ids of a prompt, and of its completion, padded with EOS to gen_length or to the end of a block (sampled_length).
Example = tuple[list[int], list[int]]


def train_sft(config: SFTConfig, **options: Any) -> Path:
    """Train; returns the final model's folder. options: resume and report, as of `train_on_examples`."""
    return train_on_examples(SFTTrainer, config, **options)


class SFTTrainer(ExampleTrainer):
    """What a run of `lfpo sft` trains."""

    kind = "sft"
    steps_key = "steps"

    def __init__(self, config: SFTConfig):
        check_ranks(config, "sft")
        policies, self.tokenizer = load_policies(config, *_fresh(config), needs_base=False, needs_old=False)
        model = policies[CURRENT].train()
        if config.block_length is not None:
            set_block_length(model, config.block_length)
        if config.masked_loss_weight != SFTConfig.masked_loss_weight and not has_next_loss(model):
            raise UserError(
                f"masked_loss_weight {config.masked_loss_weight}: {model.family.name} models have no loss beside "
                "the masked one; leave it out"
            )
        super().__init__(config, model, _example_source(config, self.tokenizer, model))
        self.state["losses"] = []  # since the last logged line

    def run_iteration(self, step: int, context: Context) -> Json:
        """One optimiser step; metrics every logging_steps."""
        config, losses, first = self.args, self.state["losses"], self.first_of(step)
        batch = {i: self.draw(first + i) for i in own_examples(config.batch_size)}
        dummy = self.draw(first) if config.fsdp else None
        loss = accumulate_sft_gradients(self.model, config, batch, generator(config.seed, step, "t"), dummy)
        about_step = self.update(step, loss, context)
        losses.append(about_step["loss"])
        done = step + 1
        if done % config.logging_steps and done < self.total_steps:
            return {}
        mean = sum(losses) / len(losses)
        losses.clear()
        return {"step": done, **about_step, "loss": mean}

    @torch.no_grad()
    def evaluate(self, step: int, context: Context) -> dict[str, float]:
        """The loss on held-out examples, with the same noise each time. A collective."""
        config, total = self.args, 0.0
        for start in range(0, len(self.held_out), config.batch_size):
            size = min(config.batch_size, len(self.held_out) - start)
            own = {i: self.held_out[start + i] for i in own_examples(size)}
            rng = generator(config.seed, "held-out", start)
            passes = noised_passes(self.model, config, own, size, rng)
            dummy = self.held_out[start] if config.fsdp else None
            total += size * sum(each.item() for each in losses(self.model, passes, dummy))
        return {"eval/loss": collectives.sum_number(total) / len(self.held_out)} if self.held_out else {}

    def export(self) -> MaskedDiffusionLM:
        factors = [(p, p.detach().clone()) for _, p in self.model.factors()]
        model = self.model.to(getattr(torch, self.args.export_dtype))
        for parameter, value in factors:  # the adapter is added in float32 when the model is saved
            parameter.data = value
        return model


class Noise(NamedTuple):
    """The random numbers of an example of C completion tokens. draw_C: a token whose number is below t is noised.
    token_C: what stands there then. conditioned: whether the prediction is conditioned on a first one."""

    draw_C: torch.Tensor
    token_C: torch.Tensor
    conditioned: bool


def noise_of(model: MaskedDiffusionLM, length: int, rng: torch.Generator) -> Noise:
    """The noise of an example of so many completion tokens: masks, or tokens of the whole vocabulary."""
    draw_C = torch.rand(length, generator=rng)
    return Noise(draw_C, *model.noise(length, rng))


class Examples(NamedTuple):
    """Examples that run together, [B, L], on the CPU. noised, clean: token ids. scored: positions whose clean token is
    predicted from the noised ones, with `weight`; next_weight: of tokens that the clean ones before them predict.
    temperature: of the prediction that conditions a token, 0 for none (read where noise is uniform)."""

    noised: torch.Tensor
    clean: torch.Tensor
    attention: torch.Tensor
    prompt_B: torch.Tensor
    scored: torch.Tensor
    weight: torch.Tensor
    next_weight: torch.Tensor
    temperature: torch.Tensor


def accumulate_sft_gradients(
    model: MaskedDiffusionLM,
    config: SFTConfig,
    batch: dict[int, Example],
    rng: torch.Generator,
    dummy: Example | None = None,
) -> float:
    """Add the gradient of some examples of a batch to the parameters; returns their part of the batch's loss.

    batch: position in the whole batch -> example. Memory depends on update_tokens only. dummy: see `losses`.
    """
    total = 0.0
    for loss in losses(model, noised_passes(model, config, batch, config.batch_size, rng), dummy):
        loss.backward()
        total += loss.item()
    return total


def noised_passes(
    model: MaskedDiffusionLM, config: SFTConfig, batch: dict[int, Example], size: int, rng: torch.Generator
) -> list[Examples]:
    """Some examples of a batch of `size`, noised and packed into passes of at most update_tokens. t is stratified over
    the whole batch, which keeps its distribution uniform and lowers the variance of the loss. batch: position in the
    whole batch -> example."""
    low, high = config.mask_ratios
    # Every rank draws the noise levels of the whole batch, in the same order, and takes those of its examples.
    t_B = (torch.arange(size) + torch.rand((), generator=rng)) / size
    t_B = (low + (high - low) * t_B).clamp(min=MIN_T)[torch.randperm(size, generator=rng)]
    # Each example has a stream of its own, so its noise does not depend on which rank has it.
    root = int(torch.randint(2**62, (), generator=rng))
    noise = {i: noise_of(model, len(completion), generator(root, i)) for i, (_, completion) in batch.items()}
    indices, rows = list(batch), [prompt + completion for prompt, completion in batch.values()]
    structure = training_structure(model)
    prompts = torch.tensor([len(prompt) for prompt, _ in batch.values()])
    lengths = structure.tokens(torch.tensor([len(row) for row in rows]), prompts).tolist()
    has_next = has_next_loss(model)
    masked_weight = config.masked_loss_weight if has_next else 1.0
    score_all = model.asks_about_all and config.loss_weight == "1/t"  # nothing tells the model which tokens are noised
    passes = list[Examples]()
    for packed in pack_by_tokens(lengths, config.update_tokens):
        group = [indices[j] for j in packed]
        ids, attention = left_pad([rows[j] for j in packed], model.pad_id)
        scored, noised = torch.zeros_like(ids, dtype=torch.bool), ids.clone()
        weight, next_weight, temperature = torch.zeros(3, *ids.shape)
        for j, i in enumerate(group):
            own = noise[i]
            length = len(own.draw_C)
            hidden = own.draw_C < t_B[i]
            noised[j, -length:] = torch.where(hidden, own.token_C, ids[j, -length:])
            scored[j, -length:] = hidden | score_all
            # The weights of an example sum to 1 / size: exactly where they count what is scored; on average with the
            # 1/t of Eq. 5, for t times `length` tokens are noised.
            share = (
                length if score_all else t_B[i] * length if config.loss_weight == "1/t" else hidden.sum().clamp(min=1)
            )
            weight[j, -length:] = masked_weight / (share * size)
            temperature[j, -length:] = float(own.conditioned)
            if has_next:
                known = through_eos(batch[i][1], model)
                next_weight[j, ids.shape[1] - length :][:known] = 1 / (known * size)
        if scored.any() or next_weight.any():
            passes.append(Examples(noised, ids, attention, prompts[packed], scored, weight, next_weight, temperature))
    return passes


def losses(model: MaskedDiffusionLM, passes: list[Examples], dummy: Example | None) -> Iterator[torch.Tensor]:
    """The loss of each pass; its backward belongs before the next one. dummy: with split weights, what a rank runs in
    passes that other ranks have and it has not (see with_dummy_passes)."""
    empty_pass = None
    if dummy is not None:
        ids, attention = left_pad([dummy[0] + dummy[1]], model.pad_id)
        none, prompt_B = torch.zeros(ids.shape), torch.tensor([len(dummy[0])])
        empty_pass = Examples(ids, ids, attention, prompt_B, torch.ones_like(ids, dtype=torch.bool), none, none, none)
        passes = with_dummy_passes(passes, empty_pass)
    for each in passes:
        with one_pass([model]):
            yield float(each is not empty_pass) * loss_of(model, Examples(*(x.to(model.device) for x in each)))


def loss_of(model: MaskedDiffusionLM, p: Examples) -> torch.Tensor:
    """The weighted cross-entropies of a pass, summed."""
    structure, row = training_structure(model), (p.noised, p.clean, p.attention, p.prompt_B)
    signal = model.signal(*row, p.temperature, structure=structure)
    noised_BND, clean_BLD = noised_hidden(model, *row, structure=structure, signal=signal)
    width = noised_BND.shape[1]
    at = p.scored[:, -width:]
    row_T, column_T = p.next_weight.nonzero().unbind(-1)  # tokens that the clean ones before them predict
    hidden_TD = torch.cat([noised_BND[at], clean_BLD[row_T, column_T - 1]])
    labels_T = torch.cat([p.clean[:, -width:][at], p.clean[row_T, column_T]])
    weight_T = torch.cat([p.weight[:, -width:][at], p.next_weight[row_T, column_T]])
    heads = (model.head_weight, model.head_weight)
    r_T = torch.ones_like(weight_T)  # at r = 1 and beta = 1 the rectified loss is cross-entropy
    options: Json = {"precision": model.products, "logit_map": model.logit_map}
    return rectified_sum(hidden_TD, hidden_TD, *heads, labels_T, r_T, weight_T, beta=1.0, **options)


def has_next_loss(model: MaskedDiffusionLM) -> bool:
    """Whether a second loss trains the clean tokens' prediction of the next one. Where noise is uniform nothing reads
    that prediction."""
    return model.causal_context and not model.asks_about_all


def set_block_length(model: MaskedDiffusionLM, length: int) -> None:
    """Make a model attend block by block, or with another block length; config.json will say so. Raises UserError for a
    family whose config.json cannot say it."""
    key = model.family.block_key
    if key is None:
        raise UserError(
            f"block_length {length}: config.json of {model.family.name} models has no field for it; start from a "
            "model of another family"
        )
    for policy in (model, *model.unsplit):
        policy.block_length = model.family.block_length({key: length})
        policy.config = {**policy.config, key: length}


def _fresh(config: SFTConfig) -> tuple[MaskedDiffusionLM | None, Any]:
    """A new model and its tokenizer, where the configuration says `init`."""
    if config.init is None:
        return None, None
    if not config.tasks:
        raise UserError("'init' makes its tokenizer from 'tasks'; with rows of a data set give a 'model' to start from")
    text = config.init.get("text_config")  # has the fields of a family's text model, where it is there
    tokenizer = train_tokenizer(_tokenizer_corpus(config), (text or config.init).get("vocab_size", 512))
    own = {f"{name}_token_id": getattr(tokenizer, f"{name}_token_id") for name in ("mask", "eos", "pad")}
    own |= {"vocab_size": len(tokenizer), "embedding_size": len(tokenizer)}
    made = {**config.init, **own} if text is None else {**config.init, "text_config": {**text, **own}}
    return init_model(made, seed=config.seed, tokenizer=tokenizer), tokenizer


def _tokenizer_corpus(config: SFTConfig) -> list[str]:
    texts = []
    # Sorted: the order of `tasks` in a file must not change the vocabulary.
    for name in sorted(config.tasks):
        task, rng = get_task(name), python_rng(config.seed, "tokenizer", name)
        rows = [task.row("train", i, config.seed) for i in range(400)]
        texts += [row["prompt"] + task.demonstrate(row, rng, task.right_share) for row in rows]
    return texts


def _example_source(config: SFTConfig, tokenizer: Any, model: MaskedDiffusionLM) -> Source[Example]:
    """The examples of the configuration's data set or tasks; these have no held-out ones."""

    def encode(prompt: str | list[dict[str, str]], completion: str, gen_length: int, where: str) -> Example:
        ids, answer = encode_example(tokenizer, model, prompt, completion, gen_length, where)
        length = sampled_length(ids, answer, model)
        return ids, (answer + [model.eos_id] * length)[:length]

    def read(row: Json, where: str) -> Example:
        return encode(*demonstration(row, where), config.gen_length, where)

    if not config.tasks:
        return of_data_set(config, read)

    tasks = {name: get_task(name) for name in config.tasks}

    def from_tasks(index: int) -> Example:
        rng = python_rng(config.seed, "sft", index)
        task = tasks[rng.choices(list(tasks), weights=list(config.tasks.values()))[0]]
        row = task.row("train", index, config.seed)
        share = task.right_share if config.right_share is None else config.right_share
        where = f"task {task.name}, row {index}"
        return encode(row["prompt"], task.demonstrate(row, rng, share), task.gen_length, where)

    return from_tasks, [], 0
