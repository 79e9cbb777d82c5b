"""Views: noised inputs made from rollouts, with the positions an objective asks about."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch.nn import functional as F

from lfpo.config.sampler import Sampler
from lfpo.core.completions import tensor_fields
from lfpo.core.doubled import noised_hidden
from lfpo.core.model import MaskedDiffusionLM
from lfpo.core.rng import generator
from lfpo.core.structure import FULL, PolicyForward, Structure
from lfpo.core.trajectory import Trajectory


@dataclass
class Views:
    """S noised inputs of L = P + C tokens.

    row [S]: which rollout a view belongs to. input_ids, attention_mask [S, L]: prompt and noised completion.
    target [S, L]: positions whose prediction is scored. labels [S, L]: the clean tokens, at the targets those that are
        scored.
    weight [S, L]: how much a target counts in the objective's loss, 0 elsewhere.
    unit [S]: views with the same number are never split over two passes, because the loss joins them.
    state [S]: which of its rollout's views this is: the step before which it stands, or the number of its mask; 0 where
        there is only one.
    prompt [S]: prompt tokens of the view's rollout. length [S]: its scored tokens: up to and including the first EOS,
        or all that were revealed.
    sampler: the settings the rollouts were drawn with. mask_id: the mask token.

    The forward of these inputs has full attention. Other kinds of views derive from this one: `BlockViews`, and those
    of lfpo.contrib.
    """

    row: torch.Tensor
    input_ids: torch.Tensor
    attention_mask: torch.Tensor
    target: torch.Tensor
    labels: torch.Tensor
    weight: torch.Tensor
    unit: torch.Tensor
    state: torch.Tensor
    prompt: torch.Tensor
    length: torch.Tensor
    sampler: Sampler
    mask_id: int

    def __len__(self) -> int:
        return len(self.row)

    def select(self, index: torch.Tensor) -> Views:
        return dataclasses.replace(self, **{name: value[index] for name, value in tensor_fields(self).items()})

    def forward_tokens(self) -> torch.Tensor:
        """Tokens of the forward of each view, [S] int64."""
        return self.attention_mask.sum(-1)

    def hidden_at_targets(self, model: MaskedDiffusionLM, signal: torch.Tensor | None) -> torch.Tensor:
        """A policy's hidden states of the targets, [T, D]. signal: what `signal` gave."""
        return model.hidden(self.input_ids, self.attention_mask)[self.target]

    def signal(self, policies: Mapping[str, MaskedDiffusionLM]) -> tuple[torch.Tensor | None, list[tuple[str, Views]]]:
        """A hook: what conditions the predictions of all policies alike, and the forwards that made it, as (policy,
        views). Here nothing does."""
        return None, []

    def step_temperatures(self) -> torch.Tensor | None:
        """A hook: the temperature of the step that each view replays, [S], where a sampler changes it from step to step
        and keeps all tokens; None: it draws as `sampler` says."""
        return None

    def ran_by(self, policy: str, *, backward: bool) -> PolicyForward:
        """What the FLOPs of a policy's forward over these views depend on."""
        return PolicyForward(policy, self.attention_mask.sum(-1), self.prompt, self.target.sum(), FULL, backward)

    def trim(self) -> Views:
        """Drop the columns on the left and on the right that are padding in every view."""
        used = self.attention_mask.any(0).int()
        columns = slice(int(used.argmax()), len(used) - int(used.flip(0).argmax()))
        wide = {name: value[:, columns] for name, value in tensor_fields(self).items() if value.dim() == 2}
        return dataclasses.replace(self, **wide)


@dataclass
class BlockViews(Views):
    """Views of a model that attends block by block, in the doubled layout [noised; clean] (lfpo.core.doubled).

    structure: how tokens attend to each other.
    clean [S, L]: the clean tokens, where a label is not the final token; None: the labels.
    from_clean [S, L]: targets that the clean tokens before them predict, by the shifted logits of the causal context;
        None: none.
    """

    structure: Structure
    clean: torch.Tensor | None
    from_clean: torch.Tensor | None

    def forward_tokens(self) -> torch.Tensor:
        return self.structure.tokens(self.attention_mask.sum(-1), self.prompt)

    def hidden_at_targets(self, model: MaskedDiffusionLM, signal: torch.Tensor | None) -> torch.Tensor:
        noised_SND, clean_SLD = noised_hidden(
            model,
            self.input_ids,
            self.labels if self.clean is None else self.clean,
            self.attention_mask,
            self.prompt,
            structure=self.structure,
            signal=signal,
        )
        hidden_TD = noised_SND[self.target[:, -noised_SND.shape[1] :]]
        if self.from_clean is None:
            return hidden_TD
        view_T, column_T = self.target.nonzero().unbind(-1)
        before_TD = clean_SLD[view_T, column_T - 1]  # no target is the first token of a row
        return torch.where(self.from_clean[self.target][:, None], before_TD, hidden_TD)

    def ran_by(self, policy: str, *, backward: bool) -> PolicyForward:
        lengths = self.attention_mask.sum(-1)
        return PolicyForward(policy, lengths, self.prompt, self.target.sum(), self.structure, backward)


def noised(
    trajectory: Trajectory,
    row_S: torch.Tensor,
    masked_SL: torch.Tensor,
    target_SC: torch.Tensor,
    *,
    shown_SC: torch.Tensor | None = None,
    label_SC: torch.Tensor | None = None,
    weight_SC: torch.Tensor | None = None,
    unit_S: torch.Tensor | None = None,
    state_S: torch.Tensor | None = None,
    after_eos: bool = False,
) -> Views:
    """Views of the rollouts `row_S` with the positions `masked_SL` of prompt and completion hidden.

    Rollouts of a model that attends block by block get the doubled layout: each block is predicted from its own noised
    tokens and the clean tokens before it, all blocks in one forward. Blocks that the sampler never came to are padding.
    A first token that the causal context predicts is shown, whether it is masked or not; as a target it is predicted
    from the clean tokens before it.

    masked_SL may have C columns (completion only) or P + C; padding is never masked.
    target_SC, weight_SC: over the completion; the weight is 1 at every target unless given.
    shown_SC, label_SC: tokens that the completion shows where it is not masked, and the labels of its targets, where
        edits have made them others than the final tokens (None: the final tokens).
    unit_S, state_S: see Views; each view is its own unit, in state 0, unless given.
    after_eos: whether tokens after the first EOS are scored; decides `length` only.
    """
    prompt_ids, prompt_mask = trajectory.prompt_ids[row_S], trajectory.prompt_mask[row_S]
    tokens = trajectory.tokens[row_S]
    widen = (prompt_ids.shape[1], 0)
    if masked_SL.shape[1] == tokens.shape[1]:
        masked_SL = F.pad(masked_SL, widen)
    target, from_clean, visited_blocks = F.pad(target_SC, widen), None, torch.ones_like(tokens)
    if trajectory.structure != FULL:
        visited_blocks = trajectory.visited_blocks.to(prompt_mask.dtype)[row_S]
    if trajectory.structure.causal and trajectory.from_context is not None:
        given_SL = F.pad(trajectory.from_context[row_S], widen)
        masked_SL, from_clean = masked_SL & ~given_SL, target & given_SL
    clean = torch.cat([prompt_ids, tokens], dim=1)
    shown = clean if shown_SC is None else torch.cat([prompt_ids, shown_SC], dim=1)
    attention = torch.cat([prompt_mask, visited_blocks], dim=1)
    weight = target.float() if weight_SC is None else F.pad(weight_SC.float(), widen) * target
    # Everything is over [prompt; completion] from here. Padding and blocks that the sampler never came to are not
    # attended to, and never masked.
    views = Views(
        row=row_S,
        input_ids=shown.masked_fill(masked_SL & attention.bool(), trajectory.special.mask_id),
        attention_mask=attention,
        target=target,
        labels=clean if label_SC is None else torch.where(target, F.pad(label_SC, widen), clean),
        weight=weight,
        unit=torch.arange(len(row_S), device=row_S.device) if unit_S is None else unit_S,
        state=torch.zeros_like(row_S) if state_S is None else state_S,
        prompt=prompt_mask.sum(-1),
        length=(trajectory.was_revealed if after_eos else trajectory.until_eos).sum(-1)[row_S],
        sampler=trajectory.sampler,
        mask_id=trajectory.special.mask_id,
    )
    if trajectory.structure == FULL:
        return views
    structure = dataclasses.replace(trajectory.structure, doubled=True)
    return BlockViews(
        **vars(views), structure=structure, clean=None if label_SC is None else clean, from_clean=from_clean
    )


def masked_at_random(trajectory: Trajectory, count: int, seeds: Sequence[int], inner: int) -> Views:
    """`count` views a rollout with random masks of all that the sampler revealed (see `stratified_masks`); targets are
    the masked positions up to the first EOS, or all positions where nothing shows which are noised."""
    masked_KBC = stratified_masks(trajectory.was_revealed, seeds, inner, count=count, least=1)
    size, device = masked_KBC.shape[1], masked_KBC.device
    row_S = torch.arange(size, device=device).repeat_interleave(count)
    masked_SC = masked_KBC.transpose(0, 1).flatten(0, 1)
    state_S = torch.arange(count, device=device).repeat(size)
    target_SC = (masked_SC | trajectory.asks_about_all) & trajectory.until_eos[row_S]
    return noised(trajectory, row_S, masked_SC, target_SC, state_S=state_S)


def stratified_masks(
    scored_BC: torch.Tensor, seeds: Sequence[int], inner: int, *, count: int, least: int
) -> torch.Tensor:
    """`count` random subsets of each rollout's scored positions, bool [count, B, C].

    Their sizes are from `least` to all: the first is uniform, the others follow it at equal cyclic distances. So each
    is uniform, and together they cover the range evenly.
    """

    def sizes(most: int, rng: torch.Generator) -> torch.Tensor:
        values = most - least + 1
        first = torch.randint(values, (), generator=rng)
        return (first + torch.arange(count) * values // count) % values + least

    return subset_masks(scored_BC, seeds, inner, sizes)


def subset_masks(
    scored_BC: torch.Tensor, seeds: Sequence[int], inner: int, sizes: Callable[[int, torch.Generator], torch.Tensor]
) -> torch.Tensor:
    """M random subsets of each rollout's scored positions, bool [M, B, C].

    sizes(n, rng): how many of a rollout's n scored positions each of its subsets holds, int64 [M].
    """
    masks = []
    for scored_C, seed in zip(scored_BC.cpu(), seeds, strict=True):
        rng = generator(seed, "subsets", inner)
        place = scored_C.nonzero().flatten()
        size_M = sizes(len(place), rng)
        # The positions that a random order puts first are a random subset of that size.
        order = torch.stack([torch.randperm(len(place), generator=rng) for _ in size_M])
        mask_MC = torch.zeros((len(size_M), len(scored_C)), dtype=torch.bool)
        mask_MC[:, place] = order < size_M[:, None]
        masks.append(mask_MC)
    return torch.stack(masks, dim=1).to(scored_BC.device)


def in_passes(views: Views, update_tokens: int) -> tuple[list[Views], list[torch.Tensor]]:
    """The views of each pass that has targets, without padding that they all have; and their indices."""
    places = [index for index in passes(views, update_tokens) if views.target[index].any()]
    return [views.select(index).trim() for index in places], places


def passes(views: Views, update_tokens: int) -> list[torch.Tensor]:
    """Indices of the views of each pass. Views of one unit stay together, whatever the budget, which padding counts
    towards."""
    units: dict[int, list[int]] = {}
    for i, unit in enumerate(views.unit.tolist()):
        units.setdefault(unit, []).append(i)
    members = list(units.values())
    lengths = views.forward_tokens().tolist()
    # A unit is packed as if it were one row, as long as its views together, each padded to the longest.
    groups = pack_by_tokens([len(m) * max(lengths[i] for i in m) for m in members], update_tokens)
    return [torch.tensor([i for u in group for i in members[u]], device=views.row.device) for group in groups]


def pack_by_tokens(lengths: Sequence[int], budget: int) -> list[list[int]]:
    """Group row indices so that rows x longest row stays within `budget` tokens (a longer row is a group by itself).

    Rows are taken in order of length, so a group holds similar lengths; ties are taken in order of index.
    """
    groups: list[list[int]] = []
    for index in sorted(range(len(lengths)), key=lambda i: (lengths[i], i)):
        # In order of length this row is the longest of the group.
        if groups and lengths[index] * (len(groups[-1]) + 1) <= budget:
            groups[-1].append(index)
        else:
            groups.append([index])
    return groups
