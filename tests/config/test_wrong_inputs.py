"""Every mistake is one sentence with exit code 2, leaves nothing behind, and is found without torch where torch is not
needed to see it."""

import dataclasses
import gzip
import importlib
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from lfpo.cli import main
from lfpo.config.build import build
from lfpo.config.errors import UserError
from lfpo.config.objectives import all_settings, knobs_class
from lfpo.config.train import LFPOConfig
from lfpo.objectives import OBJECTIVES, make_objective

TRAIN = "train --output_dir out --task choice --max_steps 1 --prompts_per_iteration 2 --num_generations 2"
TRAIN += " --optimizer_steps_per_iteration 1 --eval_size 2"
ROWS = TRAIN.replace("--task choice", "--sampler.gen_length 8")
SFT = "sft --output_dir new --model embedded --tasks.words 1"
API = "from lfpo import LFPOConfig, LFPOTrainer\nfrom rw import ok\n"

# Command -> a part of its sentence. These are found without torch.
COMMANDS = {
    # Commands, files, keys
    "trian demo": "unknown command 'trian'; did you mean 'train'",
    "train sudokoo": "did you mean 'sudoku'",
    "plan nope": "no such file; `lfpo recipes` lists",
    "train real-finetune": "recipe 'real-finetune' is for `lfpo sft`, not for `lfpo train`",
    "train own.yaml": "config 'own.yaml': no such file; did you mean 'one.yaml'",
    "sft sudoku": "recipe 'sudoku' is for `lfpo train`, not for `lfpo sft`",
    "train nothing.yaml": "'nothing.yaml': no such file",
    "train broken.yaml": "broken.yaml:2: not readable as YAML (expected",
    "train twice.yaml": "key 'max_steps' is given twice",
    "train tabs.yaml": "tabs.yaml:1: not readable as YAML (found character",
    "train empty.yaml": "empty.yaml: expected `key: value` lines, found NoneType",
    "train one.yaml": "one.yaml: 'include' must be a list of files or recipes, found 'rows.yaml'",
    "train gone.yaml": "config 'rows.yaml': no such file",
    "train list.yaml": "expected `key: value` lines, found list",
    "train demo -s 3": "argument '-s': expected --key value",
    "train demo --lora 1 --lora.r 2": "--lora.r: 'lora' was already given a plain value",
    "train --task choice": "key 'output_dir' is missing",
    "train demo oops": "argument 'oops': expected --key value",
    "train sudoku --learning_rat 1": "did you mean 'learning_rate'",
    "train sudoku --output_dir": "output_dir: expected text, found True; a key without a value means True",
    "train sudoku --max_steps 0": "max_steps 0 must be at least 1",
    "train sudoku --eval_samplers {a/b:{}}": "'eval_samplers': ['a/b'] must be text without '/'",
    f"{SFT} --learning_rate .nan": "learning_rate nan must be positive",
    f"{SFT} --mask_ratios [0.8,0.3]": "'mask_ratios' [0.8, 0.3] must be two numbers, 0 <= low < high <= 1",
    f"{SFT} --loss_weight half": "loss_weight: 'half' is not valid; valid: 1/t, equal",
    f"{SFT} --init.d_model 32": "give either 'model' (a checkpoint) or 'init'",
    f"{SFT} --data_file rows.jsonl": "give one of 'tasks', 'data_file' and 'dataset_name'",
    "sft --output_dir new --model embedded": "give one of 'tasks', 'data_file' and 'dataset_name'",
    "sft --model embedded --data_file broken.jsonl --output_dir new --right_share 1": "'right_share' is for tasks",
    "train sudoku --sampler.num_to_transfer 2": "'num_to_transfer' is LLaDA2.1's name for the tokens that a forward",
    "train sudoku --sampler 3": "sampler: expected",
    "train sudoku --sampler.temperature 0": "temperature 0 makes all rollouts of a prompt the same",
    "train sudoku --eval_samplers.greedy.stps 4": "did you mean 'steps'",
    "train sudoku --objective.name lfop": "unknown objective 'lfop'; did you mean 'lfpo'",
    "train sudoku --objective.bta 1": "objective: unknown key 'bta'; did you mean 'beta'",
    "train sudoku --objective.beta -1": "beta -1.0 must be positive",
    "train sudoku --objective.reward_transform raw --objective.clip 3": "clip 3.0 has no effect with reward_transform",
    "train sudoku --reward_memory -1": "reward_memory -1.0 must not be negative",
    "train sudoku --lora.rank 4": "lora: unknown key 'rank'",
    "train sudoku --dtype bfloat16": "'dtype' bfloat16 needs 'lora'",
    "train sudoku --offload_reference true --lora.r 2": "'offload_reference' does not work with 'lora'",
    "train sudoku --rollout_gather layer": "'rollout_gather' layer goes with 'fsdp: true'",
    "train sudoku --rollout_gather layer --fsdp true --rollout_compile true": "does not work with 'rollout_compile'",
    "train sudoku --fsdp_size 2": "'fsdp_size' is for 'fsdp: true'",
    "train sudoku --optim adamw_8bit --fsdp true": "adamw_8bit scales moments in blocks, which fsdp would split",
    "train sudoku --optim adam": "'adam' is not valid; valid: adamw_8bit, adamw_torch",
    "train sudoku --report_to wand": "report_to[0]: 'wand' is not valid; did you mean 'wandb'",
    "train sudoku --resume maybe": "--resume takes no value",
    # Names of other software
    "train sudoku --per_device_train_batch_size 1": "set prompts_per_iteration and num_generations",
    "train sudoku --temperature 1": "is sampler.temperature here (in Python sampler=SamplerConfig(temperature=...))",
    "train sudoku --epsilon 1": "is objective.epsilon here (in Python objective={'name': ..., 'epsilon': ...})",
    "train sudoku --vllm_mode colocate": "is for vLLM",
    "train sudoku --resume_from_checkpoint x": "--resume on the command line, or train(resume=True)",
    "sft --packing true": "'packing' has no counterpart",
    "dpo --per_device_train_batch_size 1": "is batch_size here",
    # Tasks, models, folders
    "train sudoku --data_file rows.jsonl": "give one of 'task', 'data_file' and 'dataset_name'",
    "train sudoku --num_generations 2 --prompts_per_iteration 1": "splits 2 rollouts",
    "train sudoku --output_dir full": "full: holds metrics.jsonl and no config.yaml of a run",
    "train sudoku --output_dir old": "holds another run",
    "train choice --output_dir old --resume": "continue that run with `lfpo train old/config.yaml --resume`",
    "train sudoku --output_dir old --resume --sampler.gen_length 32": "sampler.gen_length None, not 32",
    "sft --output_dir old --model embedded --tasks.words 1 --resume": "holds a run of `lfpo train`, not of `lfpo sft`",
    # Other commands
    "eval --task sudoku --n_samples 4": "n_samples 4 at temperature 0 gives the same completion 4 times",
    "eval --task sudoku --protocol papr": "did you mean 'paper'",
    "sample --task sudoku --index -1": "index -1 must not be negative",
    "sample": "give either 'prompt' or 'task'",
    "compare mine.yaml": "'data_file' is a key of lfpo train; give the file by --recipe FILE, one key by --overrides",
    "compare compare --seed 1": "'seed' is decided by the comparison's 'seeds'",
    "compare compare --objectives lfop": "did you mean 'lfpo'",
    "report nowhere": "nowhere",
    "plan sudoku --gpuss 2": "did you mean 'gpus'",
    "schema trian": "lfpo schema: 'trian' has no settings; did you mean 'train'?",
    "schema": "lfpo schema takes one command, found none",
    "recipes all": "argument 'all': expected --key value",
    "demo --max_steps many": "lfpo demo: max_steps: expected a whole number, found 'many'",
    "sft --output_dir out --model embedded --tasks.wrods 1": "unknown task 'wrods'; did you mean 'words'",
    "eval --task sudoku --sampler.cache prefix --sampler.cfg_scale 1": "sampler: cache does not go with cfg_scale",
    "train algorithm/spg": "did you mean 'algorithms/spg'",
    "train old --resume": "config 'old': a folder; give a YAML file (a run's: old/config.yaml)",
    "train old/config.yaml --resume --model embedded-block": "holds a run with model embedded, not embedded-block",
    "train sudoku --nothing_like_it 1": "lfpo train sudoku: unknown key 'nothing_like_it'; "
    "`lfpo train --help` lists the keys",
    "train sudoku --objective spg": "objective: expected key: value pairs, found 'spg'",
    "push old a,b/c": "'a,b/c' must have the form USER/NAME",
    "compare compare --output_dir full": "full: exists already and holds no comparison",
    "report full": "no metrics.jsonl",
    "report emptied": "emptied: no config.yaml; give a folder written by lfpo train",
}
NEED_TORCH = {
    "export no-such-folder": "model 'no-such-folder': no such folder",
    "export embedded --output full": "full: exists already; remove it, or give another --output",
    "train sudoku --model ./nowhere": "'./nowhere': no such folder",
    "train --output_dir out": "nothing to train or measure on",
    f"{ROWS} --data_file nowhere.jsonl --reward_funcs rw.ok": "nowhere.jsonl: no such file",
    f"{ROWS} --data_file broken.jsonl --reward_funcs rw.ok": "broken.jsonl:2: not valid JSON",
    f"{ROWS} --data_file empty.jsonl --reward_funcs rw.ok": "empty.jsonl: no rows",
    f"{ROWS} --data_file rows.jsonl": "needs 'reward_funcs'",
    f"{ROWS} --data_file rows.jsonl --reward_funcs rw.five": "found 'rw.five', which is 5",
    f"{ROWS} --data_file rows.jsonl --reward_funcs nomod.ok": "there is no module 'nomod'; put nomod.py into this",
    f"{ROWS} --data_file rows.jsonl --reward_funcs rw.ok --map_row rw.five_of": "rows.jsonl:1: map_row returned int",
    "eval --task gsm8k@train=rows.jsonl,tets=rows.jsonl": "after '@', found 'tets=rows.jsonl'",
    "train sudoku --objective.name mine:Own": "there is no module 'mine'; put mine.py into this folder",
    f"{TRAIN} --sampler.block_length 3": "does not divide gen_length 4",
    "eval --task sudoku --sampler.block_length 5": "block_length 5 does not divide gen_length 16",
    "sample --task sudoku --sampler.cache dual": "set block_length",  # that there is one block only the length tells
    "train sudoku --sampler.remasking low_confidence_dynamic --sampler.threshold 0.9 --sampler.editing_threshold 0.5": (
        "editing_threshold 0.5 is for models that attend block by block (LLaDA2.1); this model has full attention"
    ),
    "plan --model llada-9b": "llada-8b",
    "plan --gpus 0": "gpus 0 must be at least 1",
    "plan --gpus 12": "multiple of gpus_per_machine 8",
    "train sudoku --model finished": "its model is in finished/model",
    f"{ROWS} --data_file uneven.jsonl --reward_funcs rw.ok": "uneven.jsonl:2: the columns are answr, prompt",
    f"{ROWS} --data_file long.jsonl --reward_funcs rw.ok": "long.jsonl:3: prompt",
    f"{ROWS} --data_file long.jsonl.gz --reward_funcs rw.ok": "or set filter_overlong_prompts",
    f"{ROWS} --data_file rows.jsonl --reward_funcs rw.ok,rw.nan": "'nan': reward 0 is nan",
    f"{ROWS} --data_file rows.jsonl --reward_funcs rw.ok --reward_weights 1,2": "2 weights for 1 functions",
    f"{TRAIN} --num_generations 1": "num_generations must exceed 1",
    f"{TRAIN} --model embedded-block --objective.name spg": "SPG needs a model with full attention, and this model",
    "train sudoku --reward_memory 1": "reward_memory limits the functions of reward_funcs, and none is given",
    f"{TRAIN} --objective.name justgrpo": "JustGRPO needs tokens revealed one at a time from left",
    f"{TRAIN} --objective.name mdpo --sampler.threshold 0.9": "MDPO needs whole predictions at scheduled steps",
    f"{TRAIN} --objective.name mdpo --sampler.block_length 2 --sampler.cache dual": "MDPO needs whole predictions",
    f"{TRAIN} --engine.max_staleness -1": "max_staleness -1 must not be negative",
    f"{TRAIN} --lora.experts true": "this model has no experts",
    f"{TRAIN} --sampler.gen_length 1000": "exceeds the model's context of 512",
}

# Settings of `lfpo train` -> a part of the sentence about them, which also names the key.
SETTINGS: list[tuple[dict[str, Any], str]] = [
    ({"output_dir": {"a": 1}}, "output_dir: expected text, found {'a': 1}"),
    ({"learning_rate": "fast"}, "learning_rate: expected a number, found 'fast'"),
    ({"learning_rate": True}, "learning_rate: expected a number, found True"),
    ({"learning_rate": -1}, "learning_rate -1.0 must be positive"),
    ({"adam_beta1": 1}, "adam_beta1 1.0 must be at least 0 and below 1"),
    ({"bf16": 1}, "bf16: expected true or false, found 1"),
    ({"seed": None}, "seed: expected a whole number, found None"),
    ({"max_steps": "010"}, "max_steps: expected a whole number, found '010'"),
    ({"sampler": {"steps": 1.5}}, "sampler: steps: expected a whole number, found 1.5"),
    ({"sampler": {"steps": True}}, "sampler: steps: expected a whole number, found True"),
    ({"sampler": {"remasking": "randm"}}, "sampler: remasking: 'randm' is not valid; did you mean 'random'?"),
    ({"sampler": {"remasking": 7}}, "sampler: remasking: 7 is not valid; valid: low_confidence, "),
    ({"sampler": {"temperature": 1, "top_p": 0}}, "sampler: top_p 0.0 must be above 0 and at most 1"),
    ({"sampler": {"max_completion_length": 3, "gen_length": 3}}, "'max_completion_length' and 'gen_length' mean the"),
    ({"columns": {"a": []}}, "columns.a: expected text, found []"),
    ({"columns": ["a"]}, "columns: expected key: value pairs, found ['a']"),
    ({"reward_funcs": ["a", {}]}, "reward_funcs[1]: expected text, found {}"),
    ({"reward_funcs": {"a": 1}}, "reward_funcs: expected a list, found {'a': 1}"),
    ({"reward_funcs": True}, "reward_funcs: expected a list, found True; a key without a value means True"),
    ({"reward_weights": "[1,2"}, "reward_weights[0]: expected a number, found '[1'"),
]

# Python code -> a part of the sentence of its UserError.
CODE = {
    "LFPOConfig(output_dir='out', max_steps='5')": "LFPOConfig: max_steps: expected a whole number, found '5'",
    "LFPOConfig(output_dir='out', sampler={'stps': 3})": "LFPOConfig: sampler: unknown key 'stps'",
    "LFPOConfig(output_dir='out', warmup_ratio=1)": "LFPOConfig: 'warmup_ratio' is warmup_steps here, in optimiser",
    "LFPOTrainer(rollout_func=1)": "LFPOTrainer: 'rollout_func' is 'engine' here",
    "LFPOConfig(output_dir='out', stop_on='never')": "stop_on[0]: 'never' is not valid; valid: accuracy_falls",
    "LFPOTrainer(args=LFPOConfig(output_dir='out', task='choice'), reward_funcs=5)": "reward_funcs: expected functions",
    "LFPOTrainer(args=LFPOConfig(output_dir='out'), reward_funcs=ok, train_dataset='rows')": "could not load the train",
    "LFPOTrainer(args=LFPOConfig(output_dir='out'), reward_funcs=ok, train_dataset=[3])": "train_dataset[0]",
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the files that the commands speak of."""
    folder = tmp_path_factory.mktemp("wrong")
    row = '{"prompt": "a\\n", "answer": "b"}\n'
    long = 2 * row + json.dumps({"prompt": "1" * 900, "answer": "b"}) + "\n"
    files = {
        "broken.yaml": "output_dir: [out\n",
        "twice.yaml": "output_dir: out\nmax_steps: 3\nmax_steps: 4\n",
        "list.yaml": "- output_dir\n",
        "mine.yaml": "data_file: rows.jsonl\n",
        "tabs.yaml": "a: \t1\n\tb: 2",
        "empty.yaml": "",
        "one.yaml": "include: rows.yaml\n",
        "gone.yaml": "include: [rows.yaml]\n",
        "rows.jsonl": 2 * row,
        "broken.jsonl": row + '{"prompt": \n',
        "empty.jsonl": "",
        "uneven.jsonl": row + '{"prompt": "a", "answr": "b"}\n',
        "long.jsonl": long,
        "full/metrics.jsonl": "precious",
        "emptied/metrics.jsonl": '{"step": 0}\n',
        "old/config.yaml": "output_dir: old\nmodel: embedded\ntask: sudoku\nsampler: {gen_length: null}\n",
        "finished/model/config.json": "{}",
        "old/run.json": '{"kind": "train"}\n',
        "rw.py": (
            "five = 5\n"
            "def ok(prompts, completions, **columns): return [1.0] * len(prompts)\n"
            "def five_of(row): return 5\n"
            "class Engine:\n"
            "    gives = frozenset({'reveal_step'})\n"
            "    def __init__(self, args): pass\n"
            "    def close(self): pass\n"
            "def nan(prompts, completions, **columns): return [float('nan')] * len(prompts)\n"
        ),
    }
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    (folder / "long.jsonl.gz").write_bytes(gzip.compress(long.encode()))
    return folder


def contents(folder: Path) -> list[str]:
    return sorted(str(p) for p in folder.rglob("*") if "__pycache__" not in p.parts)


@pytest.mark.parametrize("command", NEED_TORCH)
def test_a_wrong_command_is_one_sentence(
    command: str, folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(folder)
    monkeypatch.syspath_prepend(str(folder))
    before = contents(folder)
    assert main(command.split()) == 2
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 1 and lines[0].startswith("error: ") and NEED_TORCH[command] in lines[0], lines
    assert contents(folder) == before


@pytest.mark.parametrize(("values", "said"), SETTINGS)
def test_a_wrong_value_is_named_with_its_key(values: dict[str, Any], said: str) -> None:
    with pytest.raises(UserError) as caught:
        build(LFPOConfig, {"output_dir": "out", **values})
    assert str(caught.value).startswith("config: ") and said in str(caught.value) and "\n" not in str(caught.value)


@pytest.mark.parametrize("code", CODE)
def test_wrong_code_is_one_sentence(code: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    monkeypatch.syspath_prepend(str(folder))
    with pytest.raises((UserError, ValueError)) as caught:
        exec(API + code)
    assert CODE[code] in str(caught.value) and "\n" not in str(caught.value)
    assert not os.path.exists("out")


WITHOUT_TORCH = """
import sys

class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("torch", "transformers", "safetensors", "tokenizers", "numpy"):
            raise ImportError(f"{name} is not needed to find a wrong key")

sys.meta_path.insert(0, Blocked())
from lfpo.cli import main

for command in sys.stdin.read().splitlines():
    assert main(command.split()) == 2, command
"""


def test_a_mistake_in_any_key_is_found_without_torch_and_is_one_sentence(folder: Path) -> None:
    before = contents(folder)
    given = {"cwd": folder, "input": "\n".join(COMMANDS), "capture_output": True, "text": True}
    ended = subprocess.run([sys.executable, "-c", WITHOUT_TORCH], **given)  # type: ignore[call-overload]
    assert ended.returncode == 0, ended.stderr
    said = zip(COMMANDS.items(), ended.stderr.splitlines(), strict=True)
    assert not [x for x in said if not (x[1].startswith("error: ") and x[0][1] in x[1])]
    assert contents(folder) == before


@pytest.mark.parametrize("name", OBJECTIVES)
def test_the_knobs_that_are_checked_are_those_of_the_objective(name: str) -> None:
    module, _, attribute = OBJECTIVES[name].partition(":")
    real = getattr(importlib.import_module(module), attribute)
    assert issubclass(real, knobs_class(name))
    assert dataclasses.fields(real) == dataclasses.fields(knobs_class(name))
    assert "__post_init__" not in vars(real)


def test_an_own_objective_is_checked_when_it_is_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "own_knobs.py").write_text(
        "from dataclasses import dataclass\n"
        "@dataclass(frozen=True)\n"
        "class Mine:\n"
        "    scale: float = 1.0\n"
        "    needs_base = True\n"
    )
    monkeypatch.chdir(tmp_path)
    all_settings({"name": "own_knobs:Mine", "scal": 3})
    made = make_objective({"name": "own_knobs:Mine", "scale": 3})
    # What it leaves out has the values of every objective.
    assert made.needs_base and made.reads_old and made.needs == set() and made.at_progress(0.5) is made
    assert type(made).__name__ == "Mine"
    with pytest.raises(UserError, match="did you mean 'scale'"):
        make_objective({"name": "own_knobs:Mine", "scal": 1})
    with pytest.raises(UserError, match=r"there is no module 'nobodys'; put nobodys\.py into this folder"):
        make_objective({"name": "nobodys:Mine"})
