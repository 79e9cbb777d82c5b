"""Which states each objective asks about: what is masked, how often, what is scored, and that a draw belongs to its
rollout. Rates are held to four standard deviations."""

import dataclasses
from collections import Counter
from typing import Any

import pytest
import torch

import small_runs
from letters import rollouts, spell
from lfpo.contrib.kept import kept as with_predictions
from lfpo.contrib.wd1 import WD1
from lfpo.core.trajectory import Trajectory
from lfpo.core.views import Views, noised
from lfpo.objectives import OBJECTIVES, make_objective
from lfpo.objectives.agrpo import AGRPO
from lfpo.objectives.coupled_grpo import CoupledGRPO
from lfpo.objectives.diffu_grpo import DiffuGRPO
from lfpo.objectives.rejection import Rejection
from lfpo.objectives.spg import SPG
from lfpo.objectives.step_views import step_means
from lfpo.objectives.trace_rl import TraceRL
from lfpo.objectives.unigrpo import UniGRPO
from view_cases import check_rate, hidden, views_of

N = 1500


def check_mean(values: torch.Tensor, expected: float) -> None:
    """The mean of independent rows is as expected, in every column, judged by their own spread."""
    values = values.double()
    spread = values.std(0) / len(values) ** 0.5
    assert bool((spread > 0).all())
    assert bool(((values.mean(0) - expected).abs() <= 4 * spread).all()), (values.mean(0), expected)


# What every objective's views have in common.

KNOBS = small_runs.KNOBS | {
    "spg": {"block_length": 4, "num_masks": 3, "p_mask": 0.5},
    "wd1": {"p_mask_prompt": 0.5},
    "stable_drl": {"block_length": 4, "num_masks": 3, "p_mask": 0.5},
}
# Those that score what was revealed after the first EOS, and those that draw nothing.
AFTER_EOS = {"unigrpo", "espo", "gdsd", "justgrpo", "bgpo", "cj_grpo", "gdpo", "egspo"}
WITHOUT_DRAWS = {"trace_rl", "justgrpo", "cj_grpo", "egspo", "mdpo"}
PROMPTS = ["ab", "abbab", "a", "bb", "aba", "b"]


def mixed() -> Trajectory:
    """Rollouts of different prompts and lengths. Steps of the third reveal tokens on both sides of its EOS; the last
    stopped at its EOS and never saw the rest."""
    completions = ["abababab", "aabbaabb", "abaeabae", "bbaaabab", "babababe", "abbeeeee"]
    reveal = ["01234567", "76543210", "02143514", "00112233", "01472536", "1032----"]
    entropy = (0.5 + torch.rand(6, 8, generator=torch.Generator().manual_seed(0))).tolist()
    t = rollouts(completions, reveal, prompts=PROMPTS, entropy=entropy, temperature=1.0, steps=8)
    # What an objective of predictions at steps 0 and 3 needs besides; the others do not see it.
    at, tokens = torch.tensor([[0, 3]] * 6), t.tokens[:, None].expand(-1, 2, -1)
    known = with_predictions(t, at, tokens, torch.full((6, 2, 8), 0.5))
    return dataclasses.replace(known, advantage=torch.ones(6, 2).double())


def made(name: str) -> Any:
    return make_objective({"name": name, **KNOBS.get(name, {})})


@pytest.mark.parametrize("name", OBJECTIVES)
def test_only_masked_tokens_of_the_completion_are_scored(name: str):
    t, width = mixed(), 5
    many = t.rows(torch.arange(6).repeat(20))
    views = views_of(made(name), many)
    masked, padding = hidden(views), views.attention_mask == 0
    whole = torch.cat([many.prompt_ids, many.tokens], dim=1)[views.row]
    assert torch.equal(views.labels, whole)
    assert torch.equal(views.input_ids[~masked], whole[~masked])
    assert torch.equal(padding[:, :width], many.prompt_mask[views.row] == 0) and not padding[:, width:].any()
    assert not (masked & padding).any()
    assert not views.target[:, :width].any()
    assert not (views.target & ~masked).any()
    reached = many.reveal_step >= 0 if name in AFTER_EOS else many.until_eos
    if name in ("mdpo", "mask_aware"):  # what counts there is up to the state: see their own tests
        return
    assert not (views.target[:, width:] & ~reached[views.row]).any()
    assert torch.equal(views.weight != 0, views.target) and bool((views.weight >= 0).all())
    assert views.length.tolist() == reached.sum(-1)[views.row].tolist()
    assert masked[:, :width].any() == (name in ("diffu_grpo", "wd1", "spg", "stable_drl"))
    if name == "egspo":  # which leaves steps out
        return
    # Among 20 copies, nothing that counts is left out.
    seen = torch.zeros(6, 8, dtype=torch.bool).index_put((views.row % 6,), views.target[:, width:], accumulate=True)
    assert torch.equal(seen, reached[:6])


def drawn(views: Views) -> dict[int, list[tuple[str, str, tuple[float, ...]]]]:
    """What each row was asked, without the padding that its batch mates cause."""
    result: dict[int, list[tuple[str, str, tuple[float, ...]]]] = {}
    for i, row in enumerate(views.row.tolist()):
        own = views.attention_mask[i].bool()
        target = "".join("x" if x else "." for x in views.target[i, own])
        weight = tuple(views.weight[i, own].tolist())
        result.setdefault(row, []).append((spell(views.input_ids[i, own]), target, weight))
    return result


def test_padding_is_never_masked_and_all_that_is_trimmed():
    t = mixed()
    rows = torch.arange(6)
    views = noised(t, rows, torch.ones(6, 13, dtype=torch.bool), t.until_eos)
    assert torch.equal(hidden(views), views.attention_mask == 1)
    for kept, width in ((rows, 5), (torch.tensor([0, 4, 3]), 3), (torch.tensor([2, 5]), 1)):
        part = views.select(kept)
        assert drawn(part.trim()) == drawn(part)
        assert part.trim().labels.shape[1] == width + 8


@pytest.mark.parametrize("iteration", [0, 1])
@pytest.mark.parametrize("name", OBJECTIVES)
def test_a_mask_belongs_to_its_rollout(name: str, iteration: int):
    objective, t, seeds = made(name), mixed(), [30, 31, 32, 33, 34, 35]
    signal = torch.tensor([0.2, 0.9, 0.7, 0.4, 0.5, 0.3])
    expected = drawn(objective.views(t, signal, seeds, iteration))
    assert set(expected) == set(range(6))

    order = [4, 2, 0, 5, 3, 1]
    moved = objective.views(t.rows(torch.tensor(order)), signal[order], [seeds[i] for i in order], iteration)
    assert {order[row]: asked for row, asked in drawn(moved).items()} == expected

    alone = [objective.views(t.rows(torch.tensor([i])), signal[[i]], [seeds[i]], iteration) for i in range(6)]
    assert {i: drawn(views)[0] for i, views in enumerate(alone)} == expected

    wide = mixed()  # in the company of a prompt of 8 tokens
    wide.prompt_ids = torch.nn.functional.pad(t.prompt_ids, (3, 0), value=t.eos_id)
    wide.prompt_mask = torch.nn.functional.pad(t.prompt_mask, (3, 0))
    assert drawn(objective.views(wide, signal, seeds, iteration)) == expected


@pytest.mark.parametrize("name", sorted(set(OBJECTIVES) - WITHOUT_DRAWS))
def test_every_rollout_and_every_pass_draws_anew(name: str):
    size = 60
    t = rollouts(["abababab"] * size, prompts=["abbabbab"] * size, temperature=1.0)
    passes = [drawn(views_of(made(name), t, iteration)) for iteration in (0, 1)]
    assert passes[0] == drawn(views_of(made(name), t, 0))
    # Alike by chance only: the fewest possibilities are AGRPO's 8 steps in 3 draws and LFPO's 2 steps in 4 segments.
    assert sum(passes[0][i] == passes[1][i] for i in range(size)) < size / 3
    assert max(Counter(str(asked) for asked in passes[0].values()).values()) < size / 3


# Prompt masks.


@pytest.mark.parametrize("objective", [DiffuGRPO(p_mask_prompt=0.3), WD1(p_mask_prompt=0.3)], ids=["diffu_grpo", "wd1"])
def test_prompt_tokens_are_masked_each_by_itself_and_the_completion_wholly(objective: Any):
    views = views_of(objective, rollouts(["abea"] * N, prompts=["abb"] * N))
    assert bool(hidden(views, 3).all())
    assert views.target.int().tolist() == [[0, 0, 0, 1, 1, 1, 0]] * N
    prompt = hidden(views)[:, :3]
    check_rate(prompt, 0.3)
    check_rate(prompt[:, :2] & prompt[:, 1:], 0.09)


# UniGRPO.


def test_unigrpo_ratio_rises_in_equal_steps():
    assert [UniGRPO(num_iterations=5).step(100, n) for n in range(5)] == [100, 325, 550, 775, 1000]
    assert [UniGRPO(num_iterations=4, diffusion_steps=100).step(1, n) for n in range(4)] == [1, 34, 67, 100]
    assert UniGRPO(num_iterations=1).step(100, 0) == 100


def test_unigrpo_masks_at_that_ratio():
    objective = UniGRPO(num_iterations=3, diffusion_steps=4, min_step=2)  # t_1 can only be 2
    t = rollouts(["abab"] * N)
    masks = [hidden(views_of(objective, t, iteration), 2) for iteration in range(3)]
    check_rate(masks[0], 2 / 4)
    check_rate(masks[1], 3 / 4)
    assert bool(masks[2].all())
    check_rate(masks[0] & ~masks[1], 1 / 2 * 1 / 4)  # each pass draws its own masks: they are not nested


def test_unigrpo_starts_anywhere_between_its_bounds_and_goes_on_from_there():
    objective = UniGRPO(num_iterations=3, diffusion_steps=10, min_step=3)
    t = rollouts(["a" * 4000] * 200)  # long: the share of masked tokens tells the ratio
    shares = [10 * hidden(views_of(objective, t, iteration), 2).double().mean(1) for iteration in range(3)]
    steps = [share.round().long() for share in shares]
    assert set(steps[0].tolist()) == {3, 4, 5, 6, 7, 8}
    assert torch.equal(steps[1], steps[0] + (10 - steps[0]) // 2)
    assert steps[2].tolist() == [10] * 200


def test_unigrpo_scores_after_the_eos_what_the_sampler_reached():
    t = rollouts(["aebb", "aeee"], ["0123", "01--"])
    everything = torch.ones(2, 4, dtype=torch.bool)
    for after_eos, expected in ((True, [[1, 1, 1, 1], [1, 1, 0, 0]]), (False, [[1, 1, 0, 0]] * 2)):
        views = UniGRPO(after_eos=after_eos).masked_views(t, everything)
        assert views.target[:, 2:].int().tolist() == expected


# coupled-GRPO.


def test_coupled_masks_are_complements_and_score_every_token_once():
    t = rollouts(["abab", "abea"] * 50)
    views = views_of(CoupledGRPO(), t)
    masks = torch.stack([hidden(views, 2)[i * 100 : (i + 1) * 100] for i in range(3)])
    assert views.row.tolist() == list(range(100)) * 3
    assert bool(masks[0].all()) and torch.equal(masks[1], ~masks[2])
    targets = views.target[:, 2:].view(3, 100, 4).int()
    assert torch.equal(targets[0], t.until_eos.int())
    assert torch.equal(targets[1] + targets[2], t.until_eos.int())


def test_coupled_ratio_is_drawn_from_its_range_and_is_the_rate_of_masking():
    length, low, high = 60, 0.3, 0.7
    t = rollouts(["a" * length] * N)
    views = views_of(CoupledGRPO(min_ratio=low, max_ratio=high), t)
    weight = views.weight[:, 2:].view(3, N, length).max(-1).values
    ratio = 0.5 / weight[1]
    assert bool((weight[0] == 0.5).all())
    torch.testing.assert_close(weight[2], 0.5 / (1 - ratio), rtol=1e-4, atol=0)
    assert bool((ratio >= low - 1e-6).all()) and bool((ratio <= high + 1e-6).all())
    check_mean(ratio, 0.5)
    for i, bound in enumerate((0.4, 0.5, 0.6)):
        check_rate(ratio[:, None] < bound, (i + 1) / 4)
    excess = hidden(views, 2)[N : 2 * N].double().mean(1) - ratio
    check_mean(excess, 0.0)
    check_mean(excess * (ratio - 0.5), 0.0)


# SPG.


def test_spg_masks_part_of_a_block_and_all_that_follows():
    t = rollouts(["ababababab", "ababaeabab"] * (N // 2))  # blocks of 4, 4, 2; and of 4, 2
    views = views_of(SPG(block_length=4, num_masks=1, p_mask=0.0), t)
    masks = hidden(views, 2)
    assert not hidden(views)[:, :2].any()
    assert torch.equal(views.target[:, 2:], masks & t.until_eos)
    for kind, blocks in ((0, [(0, 4), (4, 8), (8, 10)]), (1, [(0, 4), (4, 6)])):
        rows = masks[kind::2]
        assert bool(rows[:, blocks[-1][1] :].all())
        first = rows.int().argmax(1)  # nothing before the active block is masked
        active = torch.tensor([next(i for i, (a, b) in enumerate(blocks) if a <= f < b) for f in first.tolist()])
        for i, (start, end) in enumerate(blocks):
            check_rate((active == i)[:, None], 1 / len(blocks))
            mine = rows[active == i]
            assert bool(mine[:, end:].all()) and not mine[:, :start].any()
            length = end - start
            count = mine[:, start:end].sum(1)
            for size in range(1, length + 1):
                check_rate((count == size)[:, None], 1 / length)
            check_rate(mine[:, start:end], (length + 1) / (2 * length))


def test_spg_masks_prompt_and_earlier_blocks_at_a_rate_but_no_more_of_the_active_block():
    t = rollouts(["abababab"] * N, prompts=["abb"] * N)
    views = views_of(SPG(block_length=4, num_masks=2, p_mask=0.3), t)
    first, second = hidden(views)[:N], hidden(views)[N:]
    check_rate(first[:, :3], 0.3)
    check_rate(second[:, :3], 0.3)
    check_rate(first[:, :3] & second[:, :3], 0.09)
    masks = torch.where(first[:, 7:].all(1)[:, None], second, first)  # which of the two has the second block active
    later = masks[~(first[:, 7:].all(1) & second[:, 7:].all(1))]
    check_rate(later[:, 3:7], 0.3)
    check_rate(later[:, 3:5] & later[:, 4:6], 0.09)
    # With every other token masked, all that shows lies in one block, and its number is uniform.
    shown = ~hidden(views_of(SPG(block_length=4, num_masks=1, p_mask=1.0), t))
    assert not shown[:, :3].any() and not (shown[:, 3:7].any(1) & shown[:, 7:].any(1)).any()
    for size in range(4):
        check_rate((shown.sum(1) == size)[:, None], 1 / 4)


def test_spg_draws_no_block_twice_before_every_block_was_drawn():
    t = rollouts(["abababab"] * 50)
    views = views_of(SPG(block_length=2, num_masks=4, p_mask=0.0), t)
    first = hidden(views, 2).int().argmax(1).view(4, 50) // 2
    assert sorted({tuple(sorted(row)) for row in first.T.tolist()}) == [(0, 1, 2, 3)]
    assert len({tuple(row) for row in first.T.tolist()}) > 10


def test_spg_takes_the_counted_completion_as_one_block_without_a_length():
    t = rollouts(["abeaaa"] * N)
    masks = hidden(views_of(SPG(block_length=None, num_masks=1, p_mask=0.9), t), 2)
    assert bool(masks[:, 3:].all())
    for size in (1, 2, 3):
        check_rate((masks[:, :3].sum(1) == size)[:, None], 1 / 3)


# AGRPO.

STEPS = ("abab", "0012", [0.1, 0.3, 0.6, 0.1])  # mean entropies 0.2, 0.6, 0.1 of its three steps


def steps_drawn(objective: AGRPO, t: Trajectory, n_steps: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Weights of each row's steps [B, steps], 0 where not drawn; and whether each was drawn."""
    table = torch.zeros(len(t), n_steps)
    for part in torch.arange(len(t)).split(100):  # distinct_steps looks at all rows for each
        views = objective.views(t.rows(part), torch.ones(len(part)), part.tolist(), 0)
        row = part[views.row]
        step = t.reveal_step[row].masked_fill(~views.target[:, 2:], -1).max(1).values
        table[row, step] = views.weight.max(1).values
    return table, table > 0


def test_agrpo_replays_the_sampled_steps_and_scores_what_they_revealed():
    t = mixed()
    views = views_of(AGRPO(mc_samples=40, step_distribution="uniform"), t)
    met = []
    for i, row in enumerate(views.row.tolist()):
        revealed = t.reveal_step[row][views.target[i, 5:]].unique()
        assert len(revealed) == 1
        met.append((row, int(revealed)))
        assert torch.equal(views.target[i, 5:], (t.reveal_step[row] == revealed) & t.until_eos[row])
        assert torch.equal(views.input_ids[i, 5:], t.rows(torch.tensor([row])).state_before(revealed)[0])
        assert len(views.weight[i][views.target[i]].unique()) == 1
    assert sorted(met) == [(row, step) for row in range(6) for step in t.distinct_steps()[row].tolist()]


@pytest.mark.parametrize(
    ("distribution", "chances"), [("uniform", [1 / 3, 1 / 3, 1 / 3]), ("entropy", [2 / 9, 6 / 9, 1 / 9])]
)
def test_agrpo_draws_steps_at_their_chance_and_weights_undo_it(distribution: Any, chances: list[float]):
    size = 700
    t = rollouts([STEPS[0]] * size, [STEPS[1]] * size, entropy=[STEPS[2]] * size)
    weight, drawn_once = steps_drawn(AGRPO(mc_samples=1, step_distribution=distribution), t, 3)
    for i, chance in enumerate(chances):
        check_rate(drawn_once[:, i : i + 1], chance)
        torch.testing.assert_close(weight[drawn_once[:, i], i].mean(), torch.tensor(1 / 3 / chance), rtol=1e-4, atol=0)
    for samples in (1, 4):
        weight, _ = steps_drawn(AGRPO(mc_samples=samples, step_distribution=distribution), t, 3)
        check_mean(weight, 1 / 3)  # of L steps, each counts 1 / L in expectation


def test_agrpo_samples_are_stratified():
    t = rollouts(["abab"] * 50)
    weight, _ = steps_drawn(AGRPO(mc_samples=8, step_distribution="uniform"), t, 4)
    torch.testing.assert_close(weight, torch.full((50, 4), 1 / 4))  # each step drawn exactly twice


def test_agrpo_counts_entropy_up_to_the_eos_and_survives_none():
    objective = AGRPO()
    t = rollouts(["abea", "abea", "abea"], ["0121"] * 3, entropy=[[0.1, 0.3, 0.6, 9.0], [0.0] * 4, [0.5, 0, 0, 9.0]])
    entropies = step_means(t, t.entropy)
    for entropy, expected in zip(entropies, ([0.1, 0.3, 0.6], [1 / 3] * 3, [1.0, 0.0, 0.0]), strict=True):
        found = objective.step_probabilities(entropy)
        torch.testing.assert_close(found, torch.tensor(expected), rtol=1e-4, atol=1e-5)
        assert bool((found > 0).all())
    assert bool(views_of(objective, t).weight.isfinite().all())


# TraceRL.


def test_trace_rl_scores_every_token_once_before_the_first_of_its_steps():
    t = mixed()
    for shrink in (1, 2, 3, 8):
        views = views_of(TraceRL(shrink=shrink), t)
        scored = torch.zeros(6, 8, dtype=torch.long).index_add(0, views.row, views.target[:, 5:].long())
        assert torch.equal(scored, t.until_eos.long())
        for row in range(6):
            steps = t.distinct_steps()[row].tolist()
            groups = [steps[i : i + shrink] for i in range(0, len(steps), shrink)]
            mine = (views.row == row).nonzero().flatten().tolist()
            assert len(mine) == len(groups)
            for i, group in zip(mine, groups, strict=True):
                assert t.reveal_step[row][views.target[i, 5:]].unique().tolist() == group
                before = t.rows(torch.tensor([row])).state_before(torch.tensor(group[:1]))[0]
                assert torch.equal(views.input_ids[i, 5:], before)
    torch.testing.assert_close(views.weight.sum(1), torch.ones(len(views)))  # the mean over each state's tokens


# Rejection.


def test_rejection_asks_only_about_right_rollouts():
    objective = Rejection(min_reward=0.5, masks=3)
    signal = objective.signal(torch.tensor([0.5, 0.4, 1.0, 0.0, 0.0, 2.0]), torch.tensor([0, 0, 0, 1, 1, 1]))
    assert signal.tolist() == [1.0, 0.0, 1.0, 0.0, 0.0, 1.0]
    views = objective.views(mixed(), signal, range(6), 0)
    assert views.row.tolist() == [0, 0, 0, 2, 2, 2, 5, 5, 5]
    every = drawn(views_of(objective, mixed()))
    assert drawn(views) == {row: every[row] for row in (0, 2, 5)}  # the others change no draw
    assert len(objective.views(mixed(), torch.zeros(6), range(6), 0)) == 0


def test_rejection_masks_at_stratified_ratios_and_weights_by_them():
    length, counted = 80, 60
    t = rollouts(["a" * (counted - 1) + "e" + "b" * (length - counted)] * N)
    views = views_of(Rejection(masks=2), t)
    masks = hidden(views, 2).view(N, 2, length)
    weight = views.weight.view(N, 2, -1).max(-1).values
    assert torch.equal(views.weight, weight.flatten()[:, None] * views.target)
    assert torch.equal(views.target[:, 2:], hidden(views, 2) & t.until_eos[views.row])
    check_mean(masks[:, 0].double().mean(1), 1 / 4)
    ratio = 1 / (weight[:, 1] * counted)  # in the upper half, so that some token is masked and tells the weight
    assert bool((ratio >= 0.5 - 1e-6).all()) and bool((ratio <= 1 + 1e-6).all())
    for bound in (0.6, 0.75, 0.9):
        check_rate(ratio[:, None] < bound, (bound - 0.5) * 2)
    excess = masks[:, 1].double().mean(1) - ratio
    check_mean(excess, 0.0)
    check_mean(excess * (ratio - 0.75), 0.0)
