"""The learning rate of a run that names none."""

from dataclasses import replace
from pathlib import Path

import pytest

from lfpo.config.sft import SFTConfig
from lfpo.models import load_model
from lfpo.train.rates import usual_rate, with_rate
from lfpo.train.sft import SFTTrainer


@pytest.mark.parametrize(
    ("kind", "parameters", "adapter", "rate"),
    [
        ("train", 1_400_000, False, 2e-4),
        ("train", 135_000_000, False, 2e-5),
        ("train", 600_000_000, False, 5e-6),
        ("train", 8_000_000_000, False, 1e-6),
        ("train", 8_000_000_000, True, 3e-6),  # d1's
        ("train", 100_000_000_000, False, 1e-6),  # the largest of the table is the nearest
        ("sft", 13_000_000, False, 1e-3),  # the geometric mean of 1.4 M and 135 M is 13.7 M
        ("sft", 14_000_000, False, 3e-4),
        ("dpo", 7_000_000_000, False, 5e-7),
    ],
)
def test_the_rate_is_that_of_the_nearest_model_of_the_table(kind: str, parameters: int, adapter: bool, rate: float):
    assert usual_rate(kind, parameters, adapter=adapter) == pytest.approx(rate)


def test_a_run_takes_the_usual_rate_and_says_so_and_a_rate_far_above_it_gets_a_line(tmp_path: Path):
    args = SFTConfig(str(tmp_path / "run"), model="embedded", tasks={"choice": 1}, steps=1, batch_size=1)
    trainer = SFTTrainer(args)
    assert trainer.args.learning_rate == trainer.optimizer.param_groups[0]["lr"] == 1e-3
    assert trainer.user_args.learning_rate is None
    assert "learning_rate 0.001, the usual one for 1.4 M parameters" in trainer.about
    model = load_model("embedded")
    for rate, said in ((2e-4, False), (0.01, False), (0.02, True)):
        same, line = with_rate(replace(args, learning_rate=rate), "sft", model)
        assert same.learning_rate == rate and ("20 times the usual 0.001 for 1.4 M" in line) == said
