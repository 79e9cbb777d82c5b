"""The average of the weights that is evaluated."""

from pathlib import Path

import pytest
import torch

from lfpo.base.errors import UserError
from lfpo.models import load_model
from lfpo.train.checkpoint import latest_checkpoint
from lfpo.train.config import LFPOConfig
from lfpo.train.copies import Average
from lfpo.train.rl import LFPOTrainer
from test_train import ROWS, without_times
from test_train import config as small_config
from test_train import metrics as all_metrics


def odd_letters(prompts, completions, **columns):
    return [sum(ord(ch) % 2 for ch in c) / max(1, len(c)) for c in completions]


def config(tmp_path: Path, name: str = "run", **changes) -> LFPOConfig:
    steps = {"max_steps": 2, "eval_steps": 1, "save_steps": 1}
    return small_config(tmp_path, **{"output_dir": str(tmp_path / name), **steps, **changes})


def metrics(run: Path) -> list[dict]:
    return without_times(all_metrics(run))


def test_the_average_by_hand(tmp_path: Path):
    weight = torch.nn.Parameter(torch.tensor([1.0]))
    average = Average([weight], 0.5)
    weight.data.fill_(3.0)
    average.update()  # decay 2 / 11: 1 * 2/11 + 3 * 9/11
    assert average.values[0].item() == pytest.approx(29 / 11)
    weight.data.fill_(0.0)
    for _ in range(7):
        average.update()
    now = average.values[0].item()
    weight.data.fill_(8.0)
    average.update()  # the ninth: 10 / 19 is above the decay
    assert average.values[0].item() == pytest.approx(0.5 * now + 4.0)
    with average.in_place():
        assert weight.item() == pytest.approx(0.5 * now + 4.0)
    assert weight.item() == 8.0
    average.save(tmp_path)
    other = Average([weight], 0.5)
    other.load(tmp_path)
    assert other.updates == 9 and torch.equal(other.values[0], average.values[0])
    with pytest.raises(UserError, match="average_decay"):
        Average([weight, weight], 0.5).load(tmp_path)


def test_only_what_is_evaluated_and_exported_is_averaged(llada: Path, tmp_path: Path):
    def trained(name: str, **changes) -> LFPOTrainer:
        args = config(tmp_path, name, **changes)
        trainer = LFPOTrainer(str(llada), odd_letters, args=args, train_dataset=ROWS, eval_dataset=ROWS)
        trainer.train()
        return trainer

    plain, averaged = trained("plain"), trained("averaged", average_decay=0.9)
    names = ("loss", "reward", "grad_norm", "flops")
    a, b = metrics(tmp_path / "plain"), metrics(tmp_path / "averaged")
    assert [[r[n] for n in names] for r in a[1:]] == [[r[n] for n in names] for r in b[1:]]
    last = latest_checkpoint(tmp_path / "averaged")
    assert last is not None
    same = zip(plain.model.parameters(), load_model(last / "model").parameters(), strict=True)
    assert all(torch.equal(x, y) for x, y in same)  # the checkpoint goes on from theta itself
    exported = load_model(tmp_path / "averaged/model").parameters()
    kept = list(averaged.model.parameters())
    assert all(torch.equal(x, y) for x, y in zip(exported, kept, strict=True))
    assert any(not torch.equal(x, y) for x, y in zip(kept, plain.model.parameters(), strict=True))


def test_a_resumed_average_is_bit_identical(llada: Path, tmp_path: Path):
    for name, steps in (("whole", 3), ("run", 1), ("run", 3)):
        args = config(tmp_path, name, max_steps=steps, average_decay=0.9)
        trainer = LFPOTrainer(str(llada), odd_letters, args=args, train_dataset=ROWS, eval_dataset=ROWS)
        trainer.train(resume=(tmp_path / name).exists())
    assert metrics(tmp_path / "run") == metrics(tmp_path / "whole")
    a, b = (load_model(tmp_path / name / "model").parameters() for name in ("run", "whole"))
    assert all(torch.equal(x, y) for x, y in zip(a, b, strict=True))
