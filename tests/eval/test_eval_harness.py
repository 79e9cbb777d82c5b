"""lm-evaluation-harness, really run offline on local files, against `lfpo eval` and likelihood bounds."""

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from lfpo.cli.command_line import main
from lfpo.config.errors import UserError
from lfpo.config.sampler import SamplerConfig
from lfpo.eval.likelihood import Pair, likelihood_bounds, text_pair
from lfpo.models import load_model, load_tokenizer
from lfpo.prompts.tasks import get_task
from written_runs import write_rows

N = 6
installed = importlib.util.find_spec("lm_eval") is not None and importlib.util.find_spec("datasets") is not None
pytestmark = [
    pytest.mark.skipif(not installed, reason="lm-evaluation-harness is not installed (pip install lm-eval)"),
    pytest.mark.filterwarnings("ignore"),  # the harness's and its libraries' own
]


def harness_task(folder: Path, metric: str, **more: Any) -> dict[str, Any]:
    """The first problems of `choice` as a task of the harness over a local file."""
    rows = write_rows(folder / "rows.jsonl", get_task("choice").test_rows(N))
    return {
        "task": "local_choice",
        "dataset_path": "json",
        "dataset_kwargs": {"data_files": {"test": str(rows)}, "cache_dir": str(folder / "cache")},
        "test_split": "test",
        "doc_to_text": "{{prompt}}",
        "metric_list": [{"metric": metric, "aggregation": "mean", "higher_is_better": True}],
        **more,
    }


def generation(folder: Path, **kwargs: Any) -> dict[str, Any]:
    given = {"output_type": "generate_until", "generation_kwargs": {"until": [], "max_gen_toks": 4, **kwargs}}
    return harness_task(folder, "exact_match", doc_to_target="{{answer}}", **given)


def choice(folder: Path) -> dict[str, Any]:
    given = {"output_type": "multiple_choice", "doc_to_choice": ["A", "B"], "target_delimiter": ""}
    return harness_task(folder, "acc", doc_to_target="{{['A', 'B'].index(answer)}}", **given)


def evaluate(task: dict[str, Any], **arguments: Any) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    import lm_eval
    from lm_eval.tasks import TaskManager

    import lfpo.eval.harness  # noqa: F401  registers the model

    manager = TaskManager(include_defaults=False)  # reading the harness's own thousands of tasks takes long
    result = lm_eval.simple_evaluate(
        model="lfpo", model_args=arguments, tasks=[task], bootstrap_iters=0, task_manager=manager
    )
    assert result is not None
    return result["results"]["local_choice"], sorted(result["samples"]["local_choice"], key=lambda s: s["doc_id"])


def own(folder: Path, *more: str) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    assert main(["eval", "--task", "choice", "--n", str(N), "--output", str(folder / "own"), *more]) == 0
    result = json.loads((folder / "own" / "choice.json").read_text())
    lines = (folder / "own" / "choice.completions.jsonl").read_text().splitlines()
    return result, [json.loads(line) for line in lines]


@pytest.mark.long
def test_generation_gives_what_lfpo_eval_gives(tmp_path: Path):
    result, samples = evaluate(generation(tmp_path), pretrained="embedded", temperature=1.0, seed=3)
    mine, completions = own(tmp_path, "--sampler.temperature", "1", "--seed", "3")
    assert [s["resps"][0][0] for s in samples] == [c["completion"] for c in completions]
    assert len({c["completion"] for c in completions}) > 1
    assert result["exact_match,none"] == pytest.approx(mine["accuracy"])


def test_multiple_choice_takes_the_option_of_the_highest_bound(tmp_path: Path):
    result, samples = evaluate(choice(tmp_path), pretrained="embedded", check_greedy=False)
    model, tokenizer = load_model("embedded"), load_tokenizer("embedded")
    right = 0
    for sample, row in zip(samples, get_task("choice").test_rows(N), strict=True):
        bounds = likelihood_bounds(model, [text_pair(row["prompt"], o, tokenizer, model, 0) for o in "AB"])
        assert [r[0][0] for r in sample["resps"]] == pytest.approx(bounds, abs=1e-4)
        right += "AB"[bounds[1] > bounds[0]] == row["answer"]
    assert result["acc,none"] == pytest.approx(right / N)


class Request:
    """What the harness hands a model."""

    def __init__(self, *args: Any, doc_id: int = 0):
        self.args, self.task_name, self.doc_id = args, "t", doc_id


def test_greedy_is_what_greedy_decoding_gives():
    from lfpo.eval.harness import LfpoLM

    lm = LfpoLM(gen_length=2, mc_num=1)
    # The start of a solution, since spaces at the end of a context would belong to the continuation.
    prompts = [f"sudoku\n{cells}\n{cells[0]}" for cells in ("3BC4EFGHI413M3O2", "4BC31FG2213L3NO1", "1BCDEFGH3142MNO3")]
    texts = lm.generate_until([Request(prompt, {"until": []}) for prompt in prompts])
    asked = [Request(p, t) for p, t in zip(prompts, texts, strict=True)] + [Request(p, "##") for p in prompts]
    assert [greedy for _, greedy in lm.loglikelihood(asked)] == [True] * 3 + [False] * 3
    unchecked = LfpoLM(mc_num=1, check_greedy=False)
    assert not any(greedy for _, greedy in unchecked.loglikelihood(asked))


def test_stop_texts_and_settings_of_a_task():
    from lfpo.eval.harness import LfpoLM

    lm = LfpoLM()
    prompt = get_task("words").row("test", 0)["prompt"]
    options: list[dict[str, Any]] = [
        {"until": [], "do_sample": False, "temperature": 0.7},
        {"until": "####"},
    ]  # the first is greedy, too
    whole, cut = lm.generate_until([Request(prompt, {**o, "max_gen_toks": 24}) for o in options])
    assert "####" in whole
    assert cut == whole.split("####")[0]
    with pytest.raises(UserError, match="num_beams"):
        lm.generate_until([Request(prompt, {"num_beams": 4})])
    with pytest.raises(UserError, match="lm-eval: task 't': document 5: prompt '': it has no tokens"):
        lm.generate_until([Request(prompt, {"until": []}), Request("", {"until": []}, doc_id=5)])


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        ({"mc_num": 2.5}, "mc_num: expected a whole number, found 2.5"),
        ({"rollout_tokens": -5}, "rollout_tokens -5 must be at least 1"),
        ({"batch_size": 8}, "leave batch_size out and give rollout_tokens"),
        ({"step": 4}, "did you mean 'steps'"),
    ],
)
def test_wrong_model_arguments_are_one_sentence(wrong: dict[str, Any], told: str):
    from lfpo.eval.harness import LfpoLM

    with pytest.raises(UserError, match=f"^lm-eval: .*{told}"):
        LfpoLM(**wrong)


def sampler_of(options: dict[str, Any], **arguments: Any) -> SamplerConfig:
    from lfpo.eval.harness import LfpoLM

    return LfpoLM(**arguments)._sampler(options, "task 't'")[0]


@pytest.mark.parametrize("name", ["max_gen_toks", "max_new_tokens", "max_tokens", "max_completion_tokens"])
def test_a_task_names_the_length_as_other_models_do(name: str):
    assert sampler_of({name: 24}).gen_length == 24
    assert sampler_of({name: 24}, gen_length=16).gen_length == 16
    assert sampler_of({"gen_length": 24}, **{name: 16}).gen_length == 16
    with pytest.raises(UserError, match=r"task 't': generation_kwargs: .* mean the same; give one"):
        sampler_of({name: 24, "gen_length": 24})


def test_a_task_draws_at_the_temperature_that_transformers_takes():
    assert sampler_of({"do_sample": True}).temperature == 1
    assert sampler_of({"do_sample": True, "temperature": None}).temperature == 1
    assert sampler_of({"do_sample": True, "temperature": 0.3}).temperature == 0.3
    assert sampler_of({"do_sample": True}, temperature=0.5).temperature == 0.5
    assert sampler_of({"do_sample": False, "temperature": 0.3}).temperature == 0
    assert sampler_of({"temperature": 0.3}).temperature == 0.3
    assert sampler_of({}).temperature == sampler_of({"do_sample": None}).temperature == 0
    with pytest.raises(UserError, match="do_sample: expected true or false, found 'yes'"):
        sampler_of({"do_sample": "yes"})


def test_a_task_s_options_go_with_the_rule_and_cache_of_the_model_arguments():
    assert sampler_of({"cache_refresh": 4}, cache="prefix").cache_refresh == 4
    assert sampler_of({"alg_temp": 0.1}, rule="maskgit_plus").alg_temp == 0.1
    with pytest.raises(UserError, match="task 't': generation_kwargs: cache_refresh"):
        sampler_of({"cache_refresh": 4})


def test_settings_of_other_samplers_are_refused():
    assert sampler_of({"num_beams": 1, "seed": None}) == sampler_of({})
    for name, value in {"num_beams": 2, "repetition_penalty": 1.1}.items():
        with pytest.raises(UserError, match=f"task 't': generation_kwargs: unknown key '{name}'"):
            sampler_of({name: value})


def test_rolling_likelihood_covers_a_text_longer_than_the_context(llada: Path, monkeypatch: pytest.MonkeyPatch):
    from lfpo.eval.harness import LfpoLM

    lm = LfpoLM(pretrained=str(llada), mc_num=1)
    assert lm.loglikelihood_rolling([Request("a")])[0] == pytest.approx(
        likelihood_bounds(load_model(llada), [Pair([256], [97], 0)], mc_num=1)[0]
    )
    seen: list[int] = []

    def watched(model: Any, pairs: list[Pair], *rest: Any, **more: Any) -> Any:
        seen.extend(len(pair.answer) for pair in pairs)
        return likelihood_bounds(model, pairs, *rest, **more)

    monkeypatch.setattr("lfpo.eval.harness.likelihood_bounds", watched)
    (value,) = lm.loglikelihood_rolling([Request("abcde" * 200)])
    assert sum(seen) == 1000 and len(seen) > 1  # every token once, BOS not counted
    assert -float("inf") < value < 0


@pytest.mark.long
def test_the_command_passes_its_options_on(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    import yaml

    (tmp_path / "local_choice.yaml").write_text(yaml.safe_dump(generation(tmp_path)))
    arguments = ["--tasks", "local_choice", "--include_path", str(tmp_path), "--model_args", "pretrained=embedded"]
    assert main(["lm-eval", *arguments, "--output_path", str(tmp_path / "out")]) == 0
    assert "local_choice" in capsys.readouterr().out
    (written,) = (tmp_path / "out").rglob("results_*.json")
    assert json.loads(written.read_text())["results"]["local_choice"]["exact_match,none"] >= 0


SCRIPT = """
import json, sys
import lm_eval
from lm_eval.tasks import TaskManager
import lfpo.eval.harness

task, out = json.load(open(sys.argv[1])), sys.argv[2]
manager = TaskManager(include_defaults=False)
arguments = {"tasks": [task], "bootstrap_iters": 0, "task_manager": manager}
result = lm_eval.simple_evaluate("lfpo", model_args={"temperature": 1.0}, **arguments)
if result is not None:
    json.dump([s["resps"][0][0] for s in result["samples"]["local_choice"]], open(out, "x"))
lfpo.eval.harness.distributed.stop()
"""


@pytest.mark.long
def test_two_processes_share_the_requests(tmp_path: Path):
    (tmp_path / "script.py").write_text(SCRIPT)
    (tmp_path / "task.json").write_text(json.dumps(generation(tmp_path)))
    arguments = [str(tmp_path / name) for name in ("script.py", "task.json", "out.json")]
    process = subprocess.run(
        [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2", *arguments],
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2] / "src"), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
    )
    assert process.returncode == 0, process.stderr
    completions = own(tmp_path, "--sampler.temperature", "1")[1]
    assert json.loads((tmp_path / "out.json").read_text()) == [c["completion"] for c in completions]
