"""Supervised training, of models with full attention and of models that attend block by block."""

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from fused_cases import Products, chunks_of, widest
from letter_runs import metrics
from lfpo.config.build import build, to_dict, yaml_text
from lfpo.config.errors import UserError
from lfpo.config.sft import SFTConfig
from lfpo.core.rng import generator
from lfpo.core.structure import Structure
from lfpo.core.views import BlockViews
from lfpo.models import MaskedDiffusionLM, load_model, load_tokenizer
from lfpo.objectives.vrpo import VRPO
from lfpo.prompts.sources import in_epochs
from lfpo.runs.context import Context
from lfpo.train.checkpoint import latest_checkpoint
from lfpo.train.dpo import as_trajectory
from lfpo.train.examples import encode_example, sampled_length
from lfpo.train.sft import MIN_T, Example, SFTTrainer, accumulate_sft_gradients, train_sft
from processes import run_lfpo
from soon import soon
from tiny import LLADA_CONFIG, with_chat_template, write_dream, write_llada
from written_runs import write_rows

INIT: dict[str, Any] = {"model_type": "llada", "d_model": 32, "n_layers": 1, "n_heads": 2, "n_kv_heads": 2}
INIT |= {"mlp_hidden_size": 64, "vocab_size": 300, "max_sequence_length": 128, "rope_theta": 10000.0}
INIT |= {"rms_norm_eps": 1e-5}


def config(folder: Path, **changes: Any) -> SFTConfig:
    values: dict[str, Any] = {"output_dir": str(folder), "init": INIT, "tasks": {"choice": 1.0, "sudoku": 1.0}}
    values |= {"steps": 60, "batch_size": 16, "learning_rate": 1e-2, "warmup_steps": 5, "logging_steps": 10}
    values |= {"save_steps": 1000}
    return SFTConfig(**{**values, **changes})


def quiet(_: str) -> None:
    pass


@pytest.mark.parametrize(("block_length", "steps", "below"), soon([(None, 60, 0.6), (8, 40, 0.7)], 1))
def test_loss_decreases_and_the_model_loads(block_length: int | None, steps: int, below: float, tmp_path: Path) -> None:
    folder = train_sft(config(tmp_path / "run", block_length=block_length, steps=steps), report=quiet)
    rows = metrics(tmp_path / "run")
    assert [r["step"] for r in rows] == list(range(10, steps + 1, 10))
    assert rows[-1]["loss"] < below * rows[0]["loss"]
    assert json.loads((folder / "config.json").read_text()).get("block_length") == block_length
    model, tokenizer = load_model(folder), load_tokenizer(folder)
    assert model.block_length == block_length
    assert model.mask_id == tokenizer.mask_token_id
    assert model.eos_id == tokenizer.eos_token_id
    assert model.vocab_size == len(tokenizer)


def test_max_grad_norm_0_scales_no_gradient(tmp_path: Path) -> None:
    for name, limit in (("free", 0.0), ("wide", 1e9), ("narrow", 1e-3)):
        train_sft(config(tmp_path / name, steps=3, logging_steps=1, warmup_steps=0, max_grad_norm=limit), report=quiet)
    free, wide, narrow = (metrics(tmp_path / name) for name in ("free", "wide", "narrow"))
    assert free == wide
    assert free[0]["grad_norm"] == narrow[0]["grad_norm"] > 1e-3  # the norm before clipping


def examples(sizes: list[tuple[int, int]]) -> list[Example]:
    g = torch.Generator().manual_seed(0)
    draw = lambda n: torch.randint(0, 256, (n,), generator=g).tolist()  # noqa: E731
    return [(draw(p), draw(c)) for p, c in sizes]


@pytest.mark.parametrize("write", [write_llada, write_dream])
def test_sizes_of_passes_and_chunks_decide_nothing_but_memory(tmp_path: Path, write) -> None:
    batch = examples([(3, 8), (9, 8), (1, 4), (5, 16), (5, 8), (2, 2), (7, 12)])
    model, found = load_model(write(tmp_path / "model"), dtype=torch.float64), []
    for update_tokens, rows in ((10_000, 10_000), (60, 10_000), (1, 10_000), (10_000, 5)):
        settings = config(tmp_path, batch_size=7, update_tokens=update_tokens)
        with chunks_of(rows * model.vocab_size + 3), Products() as products:
            loss = accumulate_sft_gradients(model, settings, dict(enumerate(batch)), generator(1, "t"))
        assert (widest(products, model.vocab_size) == 5) == (rows == 5)
        found.append((loss, torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])))
        model.zero_grad()
    (loss, gradient), *others = found
    assert gradient.norm() > 0.1
    for other_loss, other in others:
        assert other_loss == pytest.approx(loss, rel=1e-12)
        assert (other - gradient).norm() < 1e-12 * gradient.norm()


@pytest.mark.parametrize(
    ("save_steps", "logging_steps", "changes"),
    soon([(4, 2, {}), (3, 2, {"block_length": 8, "loss_weight": "equal", "mask_ratios": [0.3, 0.8]}), (5, 4, {})], 1),
)
def test_a_resumed_run_equals_an_unbroken_one(
    save_steps: int, logging_steps: int, changes: dict[str, Any], tmp_path: Path
) -> None:
    settings = {"steps": 12, "batch_size": 4, "save_steps": save_steps, "logging_steps": logging_steps, **changes}
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    train_sft(config(whole, **settings), report=quiet)

    def dying(line: str) -> None:
        if line.startswith("step 8/"):
            raise RuntimeError("killed")

    with pytest.raises(RuntimeError, match="killed"):
        train_sft(config(broken, **settings), report=dying)
    assert latest_checkpoint(broken) is not None
    train_sft(config(broken, **settings), resume=True, report=quiet)
    assert metrics(broken) == metrics(whole)
    one, two = load_model(whole / "model").state_dict(), load_model(broken / "model").state_dict()
    assert all(torch.equal(one[k], two[k]) for k in one)


def test_training_from_a_checkpoint_on_a_file(tmp_path: Path, dream: Path) -> None:
    file = tmp_path / "rows.jsonl"
    file.write_text("".join(json.dumps({"prompt": f"q{i}", "completion": f"a{i}"}) + "\n" for i in range(5)))
    settings: dict[str, Any] = {"model": str(dream), "init": None, "tasks": {}, "data_file": str(file), "gen_length": 6}
    folder = train_sft(config(tmp_path / "run", steps=30, **settings), report=quiet)
    rows = metrics(tmp_path / "run")
    assert rows[-1]["loss"] < rows[0]["loss"]
    assert load_model(folder).family.name == "dream"
    assert not (dream / "IMPORTED").exists()
    assert load_tokenizer(folder).mask_token_id == 262


@pytest.mark.parametrize(
    ("row", "gen_length", "part"),
    [
        ({"prompt": "q", "completion": "too long"}, 3, "rows.jsonl:2: completion has 8 tokens"),
        ({"prompt": "q" * 600, "completion": "a"}, 3, "rows.jsonl:2: the prompt cannot be used: it has 600 tokens"),
        ({"prompt": "q"}, 3, "rows.jsonl:2: column 'completion' is missing"),
    ],
)
def test_rows_that_do_not_fit_are_named(tmp_path: Path, llada: Path, row: dict, gen_length: int, part: str) -> None:
    file = tmp_path / "rows.jsonl"
    file.write_text('{"prompt": "q", "completion": "a"}\n' + json.dumps(row) + "\n")
    source: dict[str, Any] = {"model": str(llada), "init": None, "tasks": {}, "data_file": str(file)}
    with pytest.raises(UserError) as caught:
        train_sft(config(tmp_path / "run", steps=1, gen_length=gen_length, **source), report=quiet)
    assert part in str(caught.value)


LORA = {"r": 2, "lora_alpha": 4}


@pytest.mark.long
@pytest.mark.parametrize(
    ("ranks", "split", "settings"),
    [
        (2, {}, {}),
        # Five examples, a pass each: ranks run three and two. One example: a rank has none.
        (2, {"fsdp": True}, {"batch_size": 5, "update_tokens": 1, "export_dtype": "bfloat16"}),
        (2, {"fsdp": True}, {"batch_size": 1, "gradient_checkpointing": True}),
        (2, {"fsdp": True}, {"lora": LORA, "batch_size": 3}),
        (2, {}, {"lora": LORA, "batch_size": 3}),
        (4, {"fsdp": True, "fsdp_size": 2}, {"batch_size": 5}),
    ],
    ids=str,
)
def test_several_ranks_train_like_one(ranks: int, split: dict, settings: dict, tmp_path: Path) -> None:
    """The run of ranks over gloo, with whole and with split weights, is that of one process; which resumes it, too."""
    common = {"steps": 4, "logging_steps": 1, "save_steps": 2, **settings}
    train_sft(build(SFTConfig, to_dict(config(tmp_path / "one")) | common), report=quiet)
    parts = build(SFTConfig, to_dict(config(tmp_path / "parts")) | common | split)
    (tmp_path / "parts.yaml").write_text(yaml_text(to_dict(parts)))
    ended = run_lfpo("sft", str(tmp_path / "parts.yaml"), ranks=ranks)
    assert ended.returncode == 0, ended.stderr

    def same() -> None:
        for a, b in zip(metrics(tmp_path / "one"), metrics(tmp_path / "parts"), strict=True):
            assert a["loss"] == pytest.approx(b["loss"], rel=1e-4)
            assert a["grad_norm"] == pytest.approx(b["grad_norm"], rel=1e-3)

    same()
    one, exported = (load_model(tmp_path / name / "model").state_dict() for name in ("one", "parts"))
    close = 1e-2 if settings.get("export_dtype") else 1e-4
    assert all(torch.allclose(one[name], p, rtol=close, atol=1e-4) for name, p in exported.items())
    shutil.rmtree(tmp_path / "parts" / "checkpoints" / "step-4")
    train_sft(build(SFTConfig, to_dict(parts) | {"fsdp": False, "fsdp_size": 0}), resume=True, report=quiet)
    same()


def test_splitting_needs_ranks(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"fsdp needs torchrun: .* lfpo sft"):
        train_sft(config(tmp_path / "run", fsdp=True), report=quiet)


BLOCK, EOS = 4, int(LLADA_CONFIG["eos_token_id"])
RATIOS = {"1/t": (0.0, 1.0), "equal": (0.3, 0.8)}


@pytest.fixture
def model(tmp_path: Path) -> MaskedDiffusionLM:
    return load_model(write_llada(tmp_path / "blocks", block_length=BLOCK), dtype=torch.float64)


@pytest.mark.parametrize(
    ("prompt", "completion", "expected"),
    [
        (3, [1, 2, EOS, EOS, EOS, EOS, EOS, EOS], [1, 2, EOS, EOS, EOS]),  # cut after the block with the first EOS
        (4, [1, 2, 3, EOS, EOS, EOS, EOS, EOS], [1, 2, 3, EOS]),
        (2, [1, 2, 3, 4, 5, 6, 7, EOS], [1, 2, 3, 4, 5, 6, 7, EOS, EOS, EOS]),
        (3, [1, 2, 3, 4], [1, 2, 3, 4, EOS]),  # no room for an EOS in gen_length: the block is filled up
    ],
)
def test_a_completion_ends_with_a_whole_block(
    prompt: int, completion: list[int], expected: list[int], model: MaskedDiffusionLM, llada: Path
):
    assert sampled_length([9] * prompt, completion, model) == len(expected)
    assert sampled_length([9] * prompt, completion, load_model(llada)) == len(completion)


@torch.no_grad()
@pytest.mark.parametrize(("block", "loss_weight"), [(None, "1/t"), (BLOCK, "1/t"), (BLOCK, "equal")])
def test_the_loss_is_what_the_papers_say(
    block: int | None, loss_weight: Any, model: MaskedDiffusionLM, llada: Path, tmp_path: Path
):
    """(1/n) sum over examples of 1/(t C) sum over masked tokens of CE, one example at a time, the noise drawn as
    documented; of a model that attends in blocks each block alone, after its clean prefix."""
    model = model if block else load_model(llada, dtype=torch.float64)
    n, (low, high) = 5, RATIOS[loss_weight]
    settings = config(tmp_path, batch_size=n, update_tokens=60, mask_ratios=[low, high], loss_weight=loss_weight)
    batch = examples([(3, 5), (4, 8), (1, 7), (6, 6), (9, 7)])
    rng = generator(2, "t")
    t_B = (torch.arange(n) + torch.rand((), generator=rng)) / n
    t = (low + (high - low) * t_B).clamp(min=MIN_T)[torch.randperm(n, generator=rng)].tolist()
    root = int(torch.randint(2**62, (), generator=rng))
    expected = 0.0
    for i, example in enumerate(batch):
        prompt, size = map(len, example)
        masked = torch.rand(size, generator=generator(root, i)) < t[i]
        clean = torch.tensor(example[0] + example[1])
        noised = clean.masked_fill(torch.cat([torch.zeros(prompt, dtype=torch.bool), masked]), model.mask_id)
        total: float = 0.0
        length = block or len(clean)
        for start in range(prompt // length * length, len(clean), length):
            ids = torch.cat([clean[:start], noised[start : start + length]])
            log_p = model.head(model.hidden(ids[None], structure=Structure(block)))[0].log_softmax(-1)
            for place in range(max(start, prompt), len(ids)):
                if masked[place - prompt]:
                    total -= float(log_p[place, clean[place]])
        share = t[i] * size if loss_weight == "1/t" else max(1.0, float(masked.sum()))
        expected += total / (share * n)
    with torch.enable_grad():
        loss = accumulate_sft_gradients(model, settings, dict(enumerate(batch)), generator(2, "t"))
    assert loss == pytest.approx(expected, rel=1e-6)  # weights are float32


def test_a_model_with_full_attention_becomes_a_block_model(tmp_path: Path, llada: Path):
    few = {"steps": 1, "model": str(llada), "init": None, "block_length": 8}
    assert load_model(train_sft(config(tmp_path / "run", **few), report=quiet)).block_length == 8
    dream = {**few, "model": str(write_dream(tmp_path / "dream"))}
    with pytest.raises(UserError, match=r"block_length 8.*dream"):
        train_sft(config(tmp_path / "refused", **dream), report=quiet)


def test_a_pair_ends_as_rollouts_would(model: MaskedDiffusionLM):
    """Three prompt tokens, blocks of four: the answer with EOS at its third token ends with its fifth."""
    pair = ([9, 9, 9], [1, 2, EOS, EOS, EOS, EOS], [1, 2, 3, 4, 5, 6])
    t = as_trajectory([pair], model)
    assert t.structure == Structure(BLOCK)
    assert t.tokens.shape == (2, 6 + BLOCK - 1) and t.tokens[:, 6:].unique().tolist() == [EOS]
    assert (t.reveal_step >= 0).sum(-1).tolist() == [5, 9]  # to the ends of the blocks
    assert t.lengths.tolist() == [3, 7]  # the second one's EOS comes after it
    views = VRPO(mc_samples=2).views(t, torch.zeros(2), [1, 2], 0)
    assert isinstance(views, BlockViews) and views.structure == Structure(BLOCK, doubled=True)
    assert not views.target[:, 3:][~t.until_eos[views.row]].any()


def test_tokens_that_no_text_has_are_refused_in_prompts_and_completions(llada: Path):
    """The mask token, and one that the tokenizer was given without an embedding."""
    model, tokenizer = load_model(llada), load_tokenizer(llada)
    tokenizer.add_tokens(["<new>"])
    token = tokenizer.convert_tokens_to_ids("<new>")
    model.vocab_size = token  # as of embeddings that were not resized
    for text, said in (
        ("<|mdm_mask|>", "stands for a blank"),
        ("<new>", f"token {token} of the tokenizer, and the model has {token} embeddings"),
    ):
        with pytest.raises(UserError, match=f"row 1: the prompt cannot be used: .*{said}"):
            encode_example(tokenizer, model, f"a{text}", "b", 8, "row 1")
        with pytest.raises(UserError, match=f"row 1: the completion cannot be used: .*{said}"):
            encode_example(tokenizer, model, "a", f"b{text}", 8, "row 1")
    assert encode_example(tokenizer, model, "a", "b", 2, "row 1")[1][1:] == [model.eos_id]


def test_conversations_and_renamed_columns_are_the_same_examples_and_held_out_rows_give_a_loss(tmp_path: Path) -> None:
    """TRL's three formats; the answers of the CSV are numbers. The held-out loss has the same noise each time."""
    checkpoint = with_chat_template(write_llada(tmp_path / "tiny"))
    turns = [[{"role": "user", "content": f"{i}+1="}, {"role": "assistant", "content": str(i + 1)}] for i in range(6)]
    write_rows(tmp_path / "chats.jsonl", [{"messages": pair} for pair in turns])
    write_rows(tmp_path / "split.jsonl", [{"prompt": pair[:1], "completion": pair[1:]} for pair in turns])
    (tmp_path / "rows.csv").write_text("question,answer\n" + "".join(f"{i}+1=,{i + 1}\n" for i in range(6)))
    values = {"model": str(checkpoint), "gen_length": 4, "batch_size": 4, "warmup_steps": 0, "logging_steps": 1}
    values |= {"steps": 12, "eval_steps": 12, "eval_size": 5, "eval_file": str(tmp_path / "chats.jsonl")}
    chats = SFTConfig(str(tmp_path / "run"), data_file=str(tmp_path / "chats.jsonl"), **values)
    split = replace(chats, data_file=str(tmp_path / "split.jsonl"))
    table = SFTConfig("run", data_file=str(tmp_path / "rows.csv"), **{**values, "eval_file": None})
    table = replace(table, columns={"question": "prompt", "answer": "completion"}, map_row="test_sft.as_messages")
    drawn = [[SFTTrainer(each).draw(i) for i in range(6)] for each in (chats, split, table)]
    assert drawn[0] == drawn[1] == drawn[2]
    trainer = SFTTrainer(chats)
    assert len(trainer.held_out) == 5
    # By hand: batches of 4 and 1, each a mean over its examples.
    losses = []
    for start, end in ((0, 4), (4, 5)):
        part = {i - start: trainer.held_out[i] for i in range(start, end)}
        rng = generator(chats.seed, "held-out", start)
        losses.append(accumulate_sft_gradients(trainer.model, replace(chats, batch_size=end - start), part, rng))
    assert trainer.evaluate(0, Context())["eval/loss"] == pytest.approx((4 * losses[0] + losses[1]) / 5)
    train_sft(chats, report=quiet)
    held_out = {row["step"]: row["eval/loss"] for row in metrics(tmp_path / "run") if "eval/loss" in row}
    assert list(held_out) == [0, 12] and held_out[12] < held_out[0]


def test_a_resume_with_another_batch_size_takes_each_example_once(tmp_path: Path, monkeypatch) -> None:
    """One epoch of 6 rows: two steps of 2, then one of 4 that takes the last two and begins the next epoch."""
    write_rows(tmp_path / "rows.jsonl", [{"prompt": f"{i}+1=", "completion": str(i + 1)} for i in range(6)])
    first = SFTConfig(str(tmp_path / "run"), model="embedded", data_file=str(tmp_path / "rows.jsonl"), gen_length=4)
    first = replace(first, num_train_epochs=1, batch_size=2, warmup_steps=0)
    drawn: list[int] = []
    draw = in_epochs(range(6), first.seed)

    def stopping(trainer: SFTTrainer, step: int, context: Context) -> Any:
        taken = step * trainer.args.batch_size + trainer.state["row_offset"]
        drawn.extend(draw(taken + i) for i in range(trainer.args.batch_size))
        if len(drawn) == 6 and trainer.args.batch_size == 2:
            drawn[4:] = []
            raise KeyboardInterrupt
        return run_iteration(trainer, step, context)

    run_iteration = SFTTrainer.run_iteration
    monkeypatch.setattr(SFTTrainer, "run_iteration", stopping)
    with pytest.raises(KeyboardInterrupt):
        train_sft(first, report=quiet)
    train_sft(replace(first, batch_size=4), resume=True, report=quiet)
    assert sorted(drawn[:6]) == list(range(6)) and len(drawn) == 8


def as_messages(row: dict[str, Any]) -> dict[str, Any]:
    assert isinstance(row["completion"], str)
    return {**row, "prompt": [{"role": "user", "content": row["prompt"]}]}
