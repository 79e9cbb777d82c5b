"""The sampler of models whose noise is uniform over the vocabulary (DiffusionGemma).

As transformers' `generate`: a canvas starts as uniform draws. Each step draws a token at each position, accepts those
of least entropy, and draws all others anew, also where they were accepted before. The next step is conditioned on the
prediction of this one. What the canvas becomes is the most probable tokens of its last step.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from torch.nn import functional as F

from lfpo.config.sampler import Sampler
from lfpo.contrib.canvases.noise import expected_embeddings
from lfpo.contrib.canvases.trajectory import NEVER, CanvasTrajectory
from lfpo.contrib.canvases.windows import by_kind, windows_of
from lfpo.core.completions import SpecialTokens
from lfpo.core.draw import inverse_cdf
from lfpo.core.forward import left_pad
from lfpo.core.fused import rows_of_a_chunk
from lfpo.core.model import MaskedDiffusionLM
from lfpo.core.rng import uniform
from lfpo.core.structure import Doubled, mask_bias
from lfpo.core.trajectory import Trajectory, join
from lfpo.core.views import pack_by_tokens

# Purposes of random numbers: the first tokens of a canvas, the tokens of a step, and those that replace the others.
START, DRAW, NOISE = range(3)


class Prediction(NamedTuple):
    """At T positions: token and best, drawn and most probable, int64; entropy [T] in nats, both at the step's
    temperature. sure, spread [T] float32: probability of `best` and entropy at temperature 1. conditioning [T, D]."""

    token: torch.Tensor
    best: torch.Tensor
    entropy: torch.Tensor
    sure: torch.Tensor
    spread: torch.Tensor
    conditioning: torch.Tensor


@dataclass
class CanvasContext:
    """Keys and values of the tokens before a canvas, [B, H_kv, L, D] for each layer. Layers call `update` (see
    lfpo.contrib.canvases.stack). storing: whether those of a forward are kept."""

    layers: dict[int, tuple[torch.Tensor, torch.Tensor]] = field(default_factory=dict)
    storing: bool = True

    def update(self, key: torch.Tensor, value: torch.Tensor, layer: int) -> tuple[torch.Tensor, torch.Tensor]:
        if layer in self.layers:
            before = self.layers[layer]
            key, value = torch.cat([before[0], key], dim=2), torch.cat([before[1], value], dim=2)
        if self.storing:
            self.layers[layer] = key, value
        return key, value

    def select(self, index: torch.Tensor | slice) -> CanvasContext:
        """The rows at `index`, to read."""
        return CanvasContext({n: (k[index], v[index]) for n, (k, v) in self.layers.items()}, storing=False)


@torch.no_grad()
def denoise_canvases(
    model: MaskedDiffusionLM,
    prompts: Sequence[Sequence[int]],
    sampler: Sampler,
    seeds: Sequence[int],
    *,
    rollout_tokens: int = 16384,
    finished: Callable[[list[int], Trajectory], None] | None = None,
    forwarded: Callable[[int], None] | None = None,
) -> CanvasTrajectory:
    """One completion for each of B prompts that fit the model. sampler: with its lengths filled in. The other arguments
    are those of lfpo.core.denoise.denoise; rollout_tokens bounds the tokens whose keys and values are held at once."""
    was_training = model.training
    model.eval()
    groups = pack_by_tokens([len(p) + sampler.gen_length for p in prompts], rollout_tokens)
    parts, order = list[Trajectory](), list[int]()
    for group in groups:
        rows = _Rows(model, [prompts[i] for i in group], [seeds[i] for i in group], sampler, forwarded)
        parts.append(rows.run())
        order += group
        if finished is not None:
            at = sorted(range(len(group)), key=group.__getitem__)
            finished([group[i] for i in at], parts[-1].rows(torch.tensor(at, device=model.device)))
    model.train(was_training)
    joined = join(parts, model.pad_id).rows(torch.tensor(order, device=model.device).argsort())
    assert isinstance(joined, CanvasTrajectory)
    return joined


class _Rows:
    """Rows that are sampled together: all are at the same canvas, and leave it when they are done with it."""

    def __init__(
        self,
        model: MaskedDiffusionLM,
        prompts: Sequence[Sequence[int]],
        seeds: Sequence[int],
        sampler: Sampler,
        forwarded: Callable[[int], None] | None,
    ):
        self.model, self.sampler, self.forwarded = model, sampler, forwarded
        self.settings, self.size = sampler.canvas, sampler.block_length
        self.structure = dataclasses.replace(model.sampling_structure(sampler.block_length), doubled=True)
        device, shape = model.device, (len(prompts), sampler.gen_length)
        ids, mask = (x.to(device) for x in left_pad(prompts, model.pad_id))
        zero = torch.zeros(len(prompts), dtype=torch.long, device=device)
        states = (shape[0], self.settings.max_denoising_steps, shape[1])
        self.seed_B = torch.tensor(list(seeds), dtype=torch.long, device=device)
        self.t = CanvasTrajectory(
            prompt_ids=ids,
            prompt_mask=mask,
            tokens=torch.full(shape, model.pad_id, device=device),
            reveal_step=torch.full(shape, -1, device=device),
            confidence=torch.zeros(shape, device=device),
            entropy=torch.zeros(shape, device=device),
            scheduled_steps=zero.clone(),
            nfe=zero.clone(),
            queries=mask.sum(-1),
            sampler=sampler,
            special=SpecialTokens(model.mask_id, model.eos_id),
            structure=model.sampling_structure(sampler.block_length),
            canvases=torch.full(states, NEVER, dtype=torch.int32, device=device),
            accepted=torch.zeros(states, dtype=torch.bool, device=device),
            entropies=torch.zeros(states, device=device),
        )

    def run(self) -> CanvasTrajectory:
        t, model = self.t, self.model
        rows = torch.arange(len(t), device=model.device)  # those without an EOS so far
        context = CanvasContext()
        ids, real = t.prompt_ids, t.prompt_mask.bool()
        for first in range(0, t.tokens.shape[1], self.size):
            self._read(ids, real, context)
            self._denoise(rows, real, context, first)
            ids = t.tokens[rows, first : first + self.size]
            # A row goes on with another canvas only where this one has no EOS.
            stay = (ids != model.eos_id).all(-1).nonzero().flatten()
            if not len(stay) or first + self.size >= t.tokens.shape[1]:
                break
            rows, ids, context = rows[stay], ids[stay], context.select(stay)
            real = torch.cat([real[stay], torch.ones_like(ids, dtype=torch.bool)], dim=1)
            t.queries[rows] += self.size
        return t

    def _read(self, ids: torch.Tensor, real: torch.Tensor, context: CanvasContext) -> None:
        """Store the keys and values of the context's last tokens, ids [A, n]. real [A, L]: of the whole context."""
        context.storing = True
        query = torch.arange(real.shape[1] - ids.shape[1], real.shape[1], device=ids.device)
        key = torch.arange(real.shape[1], device=ids.device)
        self.model.body(
            input_ids=ids,
            attention_mask=self._masks(real, query, key, None),
            position_ids=self.structure.positions(real)[:, query],
            past_key_values=context,
        )

    def _masks(
        self, real: torch.Tensor, query: torch.Tensor, key: torch.Tensor, doubled: Doubled | None
    ) -> dict[str, torch.Tensor]:
        """Masks [A, 1, queries, keys] for each kind of layers, of these token numbers of `Structure.sees`."""
        row = torch.arange(len(real), device=real.device)[:, None, None]
        masks = {}
        for kind, structure in by_kind(self.structure, windows_of(self.model.backbone.config)).items():
            seen = structure.sees(real, doubled)(row, row, query[:, None], key)
            seen = seen.expand(len(real), len(query), len(key))
            masks[kind] = mask_bias(seen[:, None], self.model.body_dtype)
        return masks

    def _denoise(self, rows: torch.Tensor, real: torch.Tensor, context: CanvasContext, first: int) -> None:
        """Denoise the canvas of the rows [A] that begins at column `first` of the completion."""
        t, settings, size = self.t, self.settings, self.size
        columns, here = torch.arange(size, device=rows.device), slice(first, first + size)
        clock = t.scheduled_steps[rows].clone()
        # `place` numbers, among `rows`, those whose canvas is still denoised; `reader` holds their context.
        place, reader = torch.arange(len(rows), device=rows.device), context.select(slice(None))
        canvas, conditioning = self._random(rows, START, 0, first + columns), None
        unchanged, best = torch.zeros_like(rows), torch.full_like(canvas, NEVER)
        masks, positions = self._canvas_masks(real)
        for step in range(settings.max_denoising_steps):
            alive = rows[place]
            if self.forwarded is not None:
                self.forwarded(len(alive))
            t.canvases[alive, step, here] = canvas.int()
            hidden = self.model.body(
                input_ids=canvas,
                attention_mask=masks,
                position_ids=positions,
                canvas=size,
                conditioning=conditioning,
                past_key_values=reader,
            ).to(self.model.dtype)
            noise = uniform(self.seed_B[alive][:, None], DRAW, step, first + columns)
            p = self._predict(hidden, noise, settings.temperature(step))
            accepted = accept(p.entropy, settings.entropy_bound)
            other = self._random(alive, NOISE, step, first + columns)
            canvas, conditioning = torch.where(accepted, p.token, other), p.conditioning
            unchanged = torch.where((p.best == best).all(-1), unchanged + 1, 0)
            best = p.best
            certain = p.entropy.mean(-1) < settings.confidence_threshold
            # A canvas is at rest when its likeliest tokens have not changed for a while and are certain. Rows end at
            # different steps.
            done = (unchanged >= settings.stability_threshold) & certain
            if step == settings.max_denoising_steps - 1:
                done = torch.ones_like(done)
            # At its last step a canvas takes the likeliest tokens: what was drawn then is not used.
            t.accepted[alive, step, here] = accepted & ~done[:, None]
            t.entropies[alive, step, here] = p.spread.to(t.entropies.dtype)
            t.scheduled_steps[alive] += 1
            t.nfe[alive] += 1
            t.queries[alive] += size
            ended = alive[done]
            for name, value in (("tokens", best), ("confidence", p.sure), ("entropy", p.spread)):
                getattr(t, name)[ended, here] = value[done].to(getattr(t, name).dtype)
            t.reveal_step[ended, here] = (clock[place][done] + step)[:, None]
            if done.any():
                stay = (~done).nonzero().flatten()
                if not len(stay):
                    return
                place, canvas, conditioning, best = place[stay], canvas[stay], conditioning[stay], best[stay]
                unchanged, reader, positions = unchanged[stay], reader.select(stay), positions[stay]
                masks = {kind: mask[stay] for kind, mask in masks.items()}

    def _canvas_masks(self, real: torch.Tensor) -> tuple[dict[str, torch.Tensor], torch.Tensor]:
        """Masks of a canvas over its context, whose keys come first, and its positions [A, size]."""
        size, length = self.size, real.shape[1]
        whole = F.pad(real, (0, size), value=True)
        token = torch.arange(size + length, device=real.device)  # in the doubled layout the canvas comes first
        # The context taken as a prompt: the canvas is the first block after it.
        doubled = Doubled(real.sum(-1), size)
        masks = self._masks(whole, token[:size], torch.cat([token[size:], token[:size]]), doubled)
        return masks, self.structure.positions(whole)[:, length:]

    def _random(self, rows: torch.Tensor, purpose: int, step: int, columns: torch.Tensor) -> torch.Tensor:
        """Uniform tokens [A, columns], a function of each row's seed."""
        return (uniform(self.seed_B[rows][:, None], purpose, step, columns) * self.model.vocab_size).long()

    def _predict(self, hidden_AKD: torch.Tensor, noise_AK: torch.Tensor, temperature: float) -> Prediction:
        """What a step needs of its logits, each [A, K, ...]; they are made for some positions at a time."""
        model, parts = self.model, []
        size = rows_of_a_chunk(hidden_AKD.device, model.vocab_size)
        for hidden, noise in zip(hidden_AKD.flatten(0, 1).split(size), noise_AK.flatten().split(size), strict=True):
            raw = model.head(hidden)
            logits = raw / temperature
            best, sure = logits.argmax(-1), raw.softmax(-1)
            parts.append(
                Prediction(
                    inverse_cdf(logits, noise),
                    best,
                    torch.special.entr(logits.softmax(-1)).sum(-1),
                    sure.gather(1, best[:, None]).squeeze(1),
                    torch.special.entr(sure).sum(-1),
                    expected_embeddings(model, logits.to(model.dtype)),
                )
            )
        shape = noise_AK.shape
        return Prediction(*(torch.cat(x).unflatten(0, shape) for x in zip(*parts, strict=True)))


def accept(entropy_AK: torch.Tensor, bound: float) -> torch.Tensor:
    """The positions of least entropy, bool [A, K]: each for which the entropies of those before it sum to at most the
    bound, so that the first is always among them (arXiv 2505.24857)."""
    ordered, index = entropy_AK.sort(dim=-1)
    return torch.zeros_like(index, dtype=torch.bool).scatter(-1, index, ordered.cumsum(-1) - ordered <= bound)
