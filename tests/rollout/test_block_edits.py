"""Token editing (LLaDA2.1): what is recorded, states rebuilt from it, and training on edited rollouts."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
import torch

import tiny
from block_rollout_cases import SEEDS, edits_of
from block_view_cases import asked_of_replay, replayed, views_for
from lfpo.cli.command_line import main
from lfpo.config.errors import UserError
from lfpo.config.sampler import SamplerConfig
from lfpo.core.completions import SpecialTokens
from lfpo.core.rule import Revealed
from lfpo.core.structure import Structure
from lfpo.core.trajectory import GIVES, Trajectory
from lfpo.core.views import BlockViews
from lfpo.core.visited import replay
from lfpo.models import MaskedDiffusionLM, load_model
from lfpo.objectives import OBJECTIVES, make_objective
from lfpo.objectives.needs import check_rollouts
from lfpo.objectives.step_views import step_means, step_views
from lfpo.report.completions import playable
from lfpo.rollout.edits import EditedTrajectory
from lfpo.rollout.local_engine import find_rule
from lfpo.rollout.reveal import Proposal
from lfpo.rollout.sampling import rollout
from lfpo.train.records import completion_record
from small_runs import LFPO_PAPER

BLOCK = 4
# Of 4, 2, 9, 1 and 7 tokens, so that completions begin at each place of a block.
PROMPTS = [[5, 6, 7, 8], [9, 10], [40, 41, 42, 43, 44, 45, 46, 47, 48], [100], [5, 6, 7, 8, 1, 2, 3]]
EDITING: dict[str, Any] = {"gen_length": 12, "remasking": "low_confidence_dynamic", "threshold": 0.3}
EDITING |= {"editing_threshold": 0.05, "max_post_steps": 3}
MASK, EOS = 90, 91


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> MaskedDiffusionLM:
    found = load_model(tiny.write_llada(tmp_path_factory.mktemp("edits") / "llada", block_length=BLOCK))
    found.backbone.lm_head.weight.data *= 4
    return found


@pytest.fixture(scope="module")
def edited(model: MaskedDiffusionLM) -> Trajectory:
    sampler = SamplerConfig(temperature=1.0, **EDITING)
    model.eos_id = int(rollout(model, PROMPTS, sampler, SEEDS).tokens[0, 5])  # so that rows end at different blocks
    return rollout(model, PROMPTS, sampler, SEEDS)


# By hand: one row with prompt tokens 1, 2 in a block of 4, so that the completion's first block has two positions.
# Step 0 reveals 30 at position 0; step 1 reveals 11 at 1; step 2 edits 0 to 31; step 3 edits 0 back to 30 and 1 to 12.
# In the next block step 4 reveals 20 and 21 at 2 and 3, step 5 reveals EOS and 23 and edits 2 to 22; step 6 edits 5.


@pytest.fixture
def by_hand() -> Trajectory:
    return EditedTrajectory(
        prompt_ids=torch.tensor([[1, 2]]),
        prompt_mask=torch.ones(1, 2, dtype=torch.long),
        tokens=torch.tensor([[30, 12, 22, 21, EOS, 24]]),
        reveal_step=torch.tensor([[0, 1, 4, 4, 5, 5]]),
        confidence=torch.tensor([[0.1, 0.2, 0.3, 0.4, 0.5, 0.6]]),
        entropy=torch.tensor([[1.0, 2.0, 3.0, 4.0, 5.0, 6.0]]),
        scheduled_steps=torch.tensor([7]),
        nfe=torch.tensor([7]),
        queries=torch.tensor([0]),
        sampler=SamplerConfig(**EDITING).for_length(4, 4),
        special=SpecialTokens(MASK, EOS),
        structure=Structure(4),
        revealed=torch.tensor([[30, 11, 20, 21, EOS, 23]]),
        edit_position=torch.tensor([[0, 0, 1, 2, 5, 0]]),
        edit_step=torch.tensor([[2, 3, 3, 5, 6, -1]]),
        edit_token=torch.tensor([[31, 30, 12, 22, 24, 0]]),
        edit_confidence=torch.tensor([[0.7, 0.8, 0.9, 0.95, 0.99, 0.0]]),
        edit_entropy=torch.tensor([[10.0, 20.0, 30.0, 40.0, 50.0, 0.0]]),
    )


def test_states_by_hand(by_hand: Trajectory):
    states = [by_hand.state_before(torch.tensor([step]))[0].tolist() for step in range(8)]
    m = MASK
    assert states == [
        [m, m, m, m, m, m],
        [30, m, m, m, m, m],
        [30, 11, m, m, m, m],
        [31, 11, m, m, m, m],
        [30, 12, m, m, m, m],
        [30, 12, 20, 21, m, m],
        [30, 12, 22, 21, EOS, 23],
        [30, 12, 22, 21, EOS, 24],
    ]
    assert by_hand.state_before(torch.tensor([[3, 1, 5, 9, 9, 6]])).tolist() == [[31, m, 20, 21, EOS, 23]]
    assert by_hand.last_step.tolist() == [[3, 3, 5, 4, 5, 6]]
    assert by_hand.final_confidence[0].tolist() == pytest.approx([0.8, 0.9, 0.95, 0.4, 0.5, 0.99])
    assert by_hand.pending_before(torch.tensor([3])).tolist() == [[True, True, True, True, True, True]]
    assert by_hand.pending_before(torch.tensor([5])).tolist() == [[False, False, True, False, True, True]]
    assert by_hand.written_by(torch.tensor([1]), torch.tensor([2])).tolist() == [[True, True, *[False] * 4]]
    assert by_hand.written_by(torch.tensor([5]), torch.tensor([5])).tolist() == [
        [False, False, True, False, True, True]
    ]


def test_steps_and_rounds_by_hand(by_hand: Trajectory):
    assert by_hand.lengths.tolist() == [5]  # position 5 stands after the EOS
    assert by_hand.distinct_steps()[0].tolist() == [0, 1, 2, 3, 4, 5]
    assert by_hand.distinct_steps(after_eos=True)[0].tolist() == [0, 1, 2, 3, 4, 5, 6]
    means = step_means(by_hand, by_hand.with_edits("entropy"))[0].tolist()
    assert means == [1, 2, 10, 25, 3.5, (5 + 40) / 2]
    rounds = by_hand.in_rounds()
    assert rounds.reveal_step.tolist() == [[0, 1, 0, 0, 1, 1]]
    assert isinstance(rounds, EditedTrajectory) and rounds.edit_step.tolist() == [[2, 3, 3, 1, 2, -1]]
    # Before round 2 the first block holds both tokens that it was given, the second one all that step 5 wrote.
    assert rounds.state_before(torch.tensor([2])).tolist() == [[30, 11, 22, 21, EOS, 23]]


def test_labels_by_hand(by_hand: Trajectory):
    row, width = torch.zeros(1, dtype=torch.long), 2
    views = step_views(by_hand.in_rounds(), row, torch.tensor([1]))
    assert views.input_ids[0, width:].tolist() == [30, MASK, 20, 21, MASK, MASK]
    assert views.target[0, width:].tolist() == [False, True, True, False, True, False]
    assert views.labels[views.target].tolist() == [11, 22, EOS]  # what the round wrote, also where it is edited later
    assert (
        isinstance(views, BlockViews)
        and views.clean is not None
        and torch.equal(views.clean[0, width:], by_hand.tokens[0])
    )
    lfpo = replay(by_hand, row, torch.tensor([[2, 2, 5, 5, 5, 5]]))
    assert lfpo.input_ids[0, width:].tolist() == [30, 11, 20, 21, MASK, MASK]
    assert lfpo.target[0, width:].tolist() == [True, True, True, False, True, False]  # masked, or still to be edited
    assert lfpo.labels[lfpo.target].tolist() == [30, 12, 22, EOS]  # the final tokens
    trace = views_for("trace_rl", by_hand, shrink=3)  # rounds 0 to 2 of both blocks, then round 3 of the first
    assert trace.input_ids[:, width:].tolist() == [[MASK] * 6, [31, 11, 22, 21, EOS, 24]]
    assert trace.labels[trace.target].tolist() == [31, 11, 22, 21, EOS, 30, 12]


def rule(
    score: list[float], token: list[int], shown: list[int], post_step: int, **settings: Any
) -> tuple[list[bool], list[bool], bool]:
    """Of one row in a block of which MASK is masked: what the rule reveals and edits, and whether the block goes on."""
    sampler = SamplerConfig(**{**EDITING, **settings})
    value, now = torch.tensor([score], dtype=torch.float64), torch.tensor([shown])
    zero = torch.zeros(1, dtype=torch.long)
    revealed = Revealed(now != MASK, now, zero + post_step)
    step = Proposal(
        now == MASK, torch.tensor([token]), value, value, value, zero, zero + 1, zero, zero, sampler, revealed=revealed
    )
    reveal = find_rule(sampler.rule_name).reveal(step)
    assert reveal.edits is not None and reveal.unfinished is not None
    return reveal.positions[0].tolist(), reveal.edits[0].tolist(), bool(reveal.unfinished)


def test_the_rule_by_hand():
    settings: dict[str, Any] = {"threshold": 0.7, "editing_threshold": 0.5, "max_post_steps": 2}
    # Position 1 draws the token that it holds, 2 another one that is not sure enough; 3 is revealed as the best.
    assert rule([0.6, 0.9, 0.5, 0.4], [7, 8, 7, 7], [9, 8, 9, MASK], 0, **settings) == (
        [False, False, False, True],
        [True, False, False, False],
        True,
    )
    full = [9, 8, 9, 9]
    assert rule([0.6, 0.9, 0.5, 0.4], [7, 8, 7, 7], full, 1, **settings)[1:] == ([True, False, False, False], True)
    assert not rule([0.6, 0.9, 0.5, 0.4], [7, 8, 7, 7], full, 2, **settings)[2]  # the last post step, though it edits
    assert not rule([0.6, 0.9, 0.5, 0.4], full, full, 1, **settings)[2]  # nothing is edited
    # Without post steps a block is complete as soon as it is full.
    assert not rule([0.6], [7], [MASK], 0, **{**settings, "max_post_steps": 0})[2]


def test_without_an_edit_the_completion_is_that_of_the_plain_rule(model: MaskedDiffusionLM):
    never = SamplerConfig(**{**EDITING, "editing_threshold": 1.0})
    t = rollout(model, PROMPTS, never, SEEDS)
    plain = {k: v for k, v in EDITING.items() if k not in ("editing_threshold", "max_post_steps")}
    expected = rollout(model, PROMPTS, SamplerConfig(**plain), SEEDS)
    assert torch.equal(t.tokens, expected.tokens)
    assert edits_of(t) == [[]] * 5
    blocks = [len(t.block_BC[row][t.reveal_step[row] >= 0].unique()) for row in range(5)]
    assert (t.nfe - expected.nfe).tolist() == blocks  # one forward more finds nothing to edit
    assert not isinstance(expected, EditedTrajectory)


# Training.


@replayed
def test_a_replay_gives_the_log_probabilities_that_were_recorded(
    name: str, knobs: dict[str, Any], model: MaskedDiffusionLM, edited: Trajectory
):
    """In the doubled layout, of revealed tokens and of edits, for prompts of any length."""
    asked = asked_of_replay(name, views_for(name, edited, **knobs), edited.in_rounds(), model)
    revealed = edited.in_rounds().reveal_step
    assert sum(step > int(revealed[row, place]) for row, place, step in asked) > 3


def test_lfpo_shows_states_that_the_sampler_saw_and_asks_for_the_final_tokens(edited: Trajectory):
    views = views_for("lfpo", edited, states="stratified", timesteps=2)
    assert views.row.bincount().max() == 2
    width, edits = edited.prompt_ids.shape[1], 0
    for number, row in enumerate(views.row.tolist()):
        for block in edited.block_BC[row][edited.visited_blocks[row]].unique():
            column = (edited.block_BC[row] == block).nonzero().flatten()
            shown = views.input_ids[number, width + column]
            states = {
                step: edited.rows(torch.tensor([row])).state_before(torch.tensor([step]))[0, column]
                for step in range(int(edited.scheduled_steps[row]) + 1)
            }
            assert any(torch.equal(shown, state) for state in states.values())
            own = views.target[number, width + column]
            edits += int((own & (shown != edited.mask_id)).sum())
    assert edits > 0
    view, column = views.target.nonzero().unbind(-1)
    place = (views.row[view], column - width)
    assert torch.equal(views.labels[views.target], edited.tokens[place])
    assert bool(edited.until_eos[place].all())


def test_rldf_asks_for_what_its_step_wrote_and_else_for_the_final_tokens(edited: Trajectory):
    t = edited.in_rounds()
    objective = make_objective({"name": "rldf", "states": 1})
    step_B = torch.ones(len(t), 1, dtype=torch.long)
    views = objective.state_views(t, step_B)  # type: ignore[attr-defined]
    width = t.prompt_ids.shape[1]
    own = t.written_by(step_B[:, 0], step_B[:, 0])
    after = t.tokens_before(step_B[:, 0] + 1)
    expected = torch.where(own, after, t.tokens)
    target = views.target[:, width:]
    assert torch.equal(views.labels[:, width:][target], expected[target])
    assert torch.equal(views.weight[:, width:] == 1, own & t.until_eos)
    assert bool((expected != t.tokens)[target].any())  # some are edited later


@pytest.mark.parametrize("name", ["espo", "rejection", "gdsd", "unigrpo"])
def test_objectives_with_masks_of_their_own_take_the_final_tokens(name: str, edited: Trajectory):
    unedited = Trajectory(**{f.name: getattr(edited, f.name) for f in dataclasses.fields(Trajectory)})
    a, b = (views_for(name, t, num_iterations=1) for t in (edited, unedited))
    assert torch.equal(a.input_ids, b.input_ids) and torch.equal(a.labels, b.labels) and torch.equal(a.target, b.target)


class Own:
    """An objective that cannot work with edits."""

    needs = frozenset({"unedited"})


def test_what_cannot_work_with_edits_is_refused_in_a_sentence():
    sampler = SamplerConfig(temperature=1.0, **EDITING).for_length(12, BLOCK)
    for name in set(OBJECTIVES) - {"spg", "stable_drl", "mask_aware", "mdpo", "justgrpo", "diffu_grpo", "wd1"}:
        check_rollouts(make_objective({"name": name}), sampler, trained_block=BLOCK)
    ones = SamplerConfig(temperature=1.0, block_length=1, **EDITING).for_length(12, 1)
    said = r"tokens that stay as they were revealed \(no sampler.editing_threshold\), which rollouts of this sampler"
    with pytest.raises(UserError, match=f"objective JustGRPO needs {said} do not give"):
        check_rollouts(make_objective({"name": "justgrpo"}), ones, trained_block=1)
    with pytest.raises(UserError, match=f"objective Own needs {said} do not give"):
        check_rollouts(Own(), sampler, trained_block=BLOCK)  # type: ignore[arg-type]
    with pytest.raises(UserError, match="LFPO needs the edits of revealed tokens, which this engine does not give"):
        check_rollouts(make_objective(LFPO_PAPER), sampler, GIVES.keys() - {"edits"}, trained_block=BLOCK)
    check_rollouts(make_objective({"name": "espo"}), sampler, (), trained_block=BLOCK)


def test_records_hold_what_edited_positions_held(by_hand: Trajectory):
    record = completion_record(by_hand, 0, {"prompt": "12"}, "x", _Letters())
    assert record["edits"] == {
        "0": [[0, 30, "30", 0.1], [2, 31, "31", 0.7], [3, 30, "30", 0.8]],
        "1": [[1, 11, "11", 0.2], [3, 12, "12", 0.9]],
        "2": [[4, 20, "20", 0.3], [5, 22, "22", 0.95]],
        "5": [[5, 23, "23", 0.6], [6, 24, "24", 0.99]],
    }
    shown = playable(record, {})
    assert shown["edits"][1] == [[1, "11", 0.2], [3, "12", 0.9]] and 5 not in shown["edits"]  # after the EOS


class _Letters:
    """A tokenizer whose tokens are written as their numbers."""

    def decode(self, ids: list[int], **_: Any) -> str:
        return "".join(map(str, ids))


def test_a_run_is_trained_on_edited_rollouts(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    source, run = tiny.write_llada(tmp_path / "llada", block_length=BLOCK), tmp_path / "run"
    given = [f"--sampler.{k}={v}" for k, v in {**EDITING, "gen_length": 8, "editing_threshold": 0.0}.items()]
    choice = ["--task", "choice", "--prompts_per_iteration", "2", "--num_generations", "2", "--eval_size", "1"]
    out = ["--max_steps", "1", "--eval_steps", "0", "--output_dir", str(run)]
    assert main(["train", "--model", str(source), *choice, *out, *given]) == 0
    (row,) = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines() if "grad_norm" in line]
    assert row["edits"] > 0 and row["flops"] > 0
    records = [json.loads(line) for path in run.glob("rollouts/*.jsonl*") for line in path.read_text().splitlines()]
    assert any(record["edits"] for record in records)
    assert main(["report", str(run)]) == 0
    assert capsys.readouterr().err == ""
