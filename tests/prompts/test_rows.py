"""What rows and messages may hold: rows from Python, values of columns, and prompts that begin the answer."""

import datetime
import decimal
import itertools
import json
import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader
from transformers import PreTrainedTokenizerFast

import tiny
from lfpo import LFPOConfig, LFPOTrainer, SamplerConfig
from lfpo.config.errors import UserError
from lfpo.config.files import json_lines, plain
from lfpo.config.sft import SFTConfig
from lfpo.core.encoding import encode_prompt
from lfpo.core.messages import prefill
from lfpo.core.scoring import as_completions, without_prefill
from lfpo.eval.command import as_text
from lfpo.models import load_model, load_tokenizer
from lfpo.models.loading import EMBEDDED
from lfpo.prompts.dataset import read_rows
from lfpo.prompts.files import load_rows
from lfpo.rollout.episodes import Environment, Episode
from lfpo.train.sft import SFTTrainer
from small_runs import ONE_PASS
from written_runs import write_rows

LLAMA = (  # the template of LLaDA-8B-Instruct: it trims content, and has a generation prompt
    "{% for message in messages %}{{ '<|start_header_id|>' + message['role'] + '<|end_header_id|>\n\n' + "
    "message['content'] | trim + '<|eot_id|>' }}{% endfor %}{% if add_generation_prompt %}"
    "{{ '<|start_header_id|>assistant<|end_header_id|>\n\n' }}{% endif %}"
)
QWEN = tiny.CHATML + "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"


def config(**changes: Any) -> LFPOConfig:
    values: dict[str, Any] = {"output_dir": "run", "sampler": SamplerConfig(gen_length=8, temperature=1.0, steps=4)}
    values |= {"prompts_per_iteration": 2, "num_generations": 2, "optimizer_steps_per_iteration": 1, "threads": 1}
    return LFPOConfig(**(values | {"max_steps": 1, "eval_steps": 0, "objective": ONE_PASS} | changes))


LISTS = "expected a list of dicts or a datasets.Dataset, found"


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        ({"prompt": ["a"], "x": [0]}, f": {LISTS} dict of 'prompt', 'x'"),
        (5, f": {LISTS} 5"),
        ("org/name", f": {LISTS} 'org/name'"),
        (["prompt"], r"\[0\]: expected a JSON object, found str"),  # as a DataFrame gives the names of its columns
        (DataLoader([{"prompt": "x"}]), r"\[0\]: a prompt list must hold messages"),  # type: ignore[arg-type]
        *(
            ([{"prompt": "a"}, {"prompt": empty}], r"\[1\]: .*prompt")
            for empty in (math.nan, None, np.float64("nan"), 3, "", " ")
        ),
    ],
)
@pytest.mark.parametrize("split", ["train", "eval"])
def test_rows_that_hold_no_prompts_are_named(rows: Any, said: str, split: str) -> None:
    with pytest.raises(UserError, match=f"^{split}_dataset{said}"):
        read_rows(LFPOConfig("run"), split, rows)


def test_empty_tools_and_tools_of_text_prompts_are_no_error(tmp_path: Path) -> None:
    rows = [{"prompt": [USER], "tools": None}, {"prompt": [USER], "tools": []}, {"prompt": "a", "tools": ["f"]}]
    (tmp_path / "rows.json").write_text(json.dumps(rows))
    assert [row.values for row in load_rows(tmp_path / "rows.json", required=("prompt",))] == rows


def test_a_single_row_of_messages_is_a_row_and_not_a_list_of_rows(tmp_path: Path) -> None:
    row = {"prompt": [{"role": "user", "content": "a"}], "tests": [{"input": 1}]}
    for name, text in (
        ("a.json", json.dumps(row)),
        ("b.jsonl", json.dumps(row)),
    ):
        (tmp_path / name).write_text(text)
        assert [found.values for found in load_rows(tmp_path / name)] == [row]


# Prompts that begin the answer


def chat(template: str) -> Any:
    tokenizer = load_tokenizer(EMBEDDED)
    tokenizer.chat_template = template
    return tokenizer


USER = {"role": "user", "content": "How many?"}


@pytest.mark.parametrize("template", [QWEN, LLAMA], ids=["chatml", "llama"])
@pytest.mark.parametrize("begun", ["The answer is", "<answer>", "a\n\nb", "How many?"])
def test_a_last_message_of_the_assistant_is_continued(template: str, begun: str) -> None:
    tokenizer, prompt = chat(template), [USER, {"role": "assistant", "content": begun}]
    opened = tokenizer.apply_chat_template([USER], tokenize=False, add_generation_prompt=True)
    assert opened != tokenizer.apply_chat_template([USER], tokenize=False)  # it has a generation prompt
    ids = encode_prompt(tokenizer, prompt)
    assert ids == tokenizer.encode(opened + begun, add_special_tokens=False)
    assert ids == tokenizer.encode(
        tokenizer.apply_chat_template(prompt, tokenize=False, continue_final_message=True), add_special_tokens=False
    )


def test_a_prompt_is_the_same_on_every_day() -> None:
    """With a template that asks for the date, opened and continued."""
    tokenizer = chat(
        "{%- if not date is defined %}{%- set date = strftime_now( '%d %b %Y' ) %}{% endif %}{{ date }}|" + LLAMA
    )
    for more in ([], [{"role": "assistant", "content": "The answer is"}]):
        text = tokenizer.decode(encode_prompt(tokenizer, [USER, *more]))
        assert text.startswith("26 Jul 2024|")


@pytest.mark.parametrize("begun", ["", "\n", "  "])
def test_a_blank_beginning_is_an_opened_turn(begun: str) -> None:
    tokenizer = chat(LLAMA)
    opened = tokenizer.apply_chat_template([USER], tokenize=False, add_generation_prompt=True)
    ids = encode_prompt(tokenizer, [USER, {"role": "assistant", "content": begun}])
    assert ids == tokenizer.encode(opened + begun, add_special_tokens=False)


def test_rewards_and_graders_get_the_whole_turn_and_the_prompt_without_it() -> None:
    prompt = [USER, {"role": "assistant", "content": "It is <answer>"}]
    assert (prefill(prompt), without_prefill(prompt)) == ("It is <answer>", [USER])
    assert (prefill("text"), without_prefill("text"), prefill([USER])) == ("", "text", "")
    assert as_completions([{"prompt": prompt}, {"prompt": [USER]}], ["7", "8"]) == [
        [{"role": "assistant", "content": "It is <answer>7"}],
        [{"role": "assistant", "content": "8"}],
    ]
    assert as_text(prompt) == "How many?\nIt is <answer>"
    assert as_text([USER]) == "How many?\n"


def test_an_episode_joins_the_beginning_and_what_the_model_wrote() -> None:
    class Game:
        def reset(self, row: Any, seed: int) -> None: ...

        def step(self, text: str) -> tuple[str, float, bool]:
            return "next", 0.0, False

    episode = Episode(0, {"prompt": [USER, {"role": "assistant", "content": "It is "}]}, 0)
    episode.step(Environment(Game, 2, 0.0), "7")
    assert episode.row["prompt"][1:] == [
        {"role": "assistant", "content": "It is 7"},
        {"role": "user", "content": "next"},
    ]


def test_sft_trains_on_the_completion_of_a_begun_answer(tmp_path: Path) -> None:
    checkpoint = tiny.with_chat_template(tiny.write_llada(tmp_path / "tiny"))
    prompt = [USER, {"role": "assistant", "content": "It is"}]
    (tmp_path / "sft.json").write_text(json.dumps([{"prompt": prompt, "completion": " 7"}]))
    args = SFTConfig("run", str(checkpoint), data_file=str(tmp_path / "sft.json"), gen_length=4, steps=1)
    trainer = SFTTrainer(args)
    ids, completion = trainer.draw(0)
    assert trainer.tokenizer.decode(ids).endswith("assistant\nIt is")
    assert completion[:2] == trainer.tokenizer.encode(" 7", add_special_tokens=False)


# What rows and messages may hold


def test_keys_that_a_dataset_filled_with_none_render_as_if_absent() -> None:
    template = (
        "{% for m in messages %}{{ m['role'] }}{% if 'name' in m %}({{ m['name'] }}){% endif %}"
        "{% if m.tool_calls is defined %}{{ m.tool_calls | tojson }}{% endif %}: {{ m['content'] }};{% endfor %}"
    )
    tokenizer = chat(template)
    for added in (
        {"name": None},
        {"tool_calls": None, "name": None},
        {"tool_calls": [{"name": "f", "arguments": {"x": 1, "y": None}}]},
    ):
        kept = {"tool_calls": [{"name": "f", "arguments": {"x": 1}}]} if added.get("tool_calls") else {}
        assert encode_prompt(tokenizer, [USER | added]) == encode_prompt(tokenizer, [USER | kept])
    datasets = pytest.importorskip("datasets")
    rows = [{"prompt": [USER, {**USER, "name": "Ann"}]}, {"prompt": [USER]}]
    for row, filled in zip(rows, datasets.Dataset.from_list(rows), strict=True):
        assert encode_prompt(tokenizer, filled["prompt"]) == encode_prompt(tokenizer, row["prompt"])


DAY = datetime.datetime(2026, 1, 2, 3, 4, 5)
VALUES: dict[str, tuple[Any, Any]] = {
    "date": (DAY.date(), "2026-01-02"),
    "datetime": (DAY, "2026-01-02T03:04:05"),
    "time": (DAY.time(), "03:04:05"),
    "timedelta": (datetime.timedelta(hours=1), "1:00:00"),
    "numpy integer": (np.int64(3), 3),
    "numpy float": (np.float32(0.5), 0.5),
    "numpy bool": (np.bool_(True), True),
    "numpy datetime": (np.datetime64("2026-01-02"), "2026-01-02"),
    "numpy array": (np.arange(4).reshape(2, 2), [[0, 1], [2, 3]]),
    "array of objects": (np.array([DAY, None], dtype=object), ["2026-01-02T03:04:05", None]),
    "tensor": (torch.tensor([1.0, 2.0]), [1.0, 2.0]),
    "Decimal": (decimal.Decimal("1.10"), "1.10"),
    "bytes": (b"ab\xff", "ab\\xff"),
    "set": ({1}, [1]),
    "object": (SimpleNamespace(a=1), "namespace(a=1)"),
    "complex": (1j, "1j"),
}


@pytest.mark.parametrize("kind", VALUES)
def test_any_value_of_a_row_is_written_as_text_or_numbers(kind: str) -> None:
    value, written = VALUES[kind]
    assert plain(value) == written
    assert json.loads(json_lines([{"a": {"b": [value]}}])) == {"a": {"b": [written]}}


def test_a_run_passes_values_as_they_are_and_writes_them(tmp_path: Path) -> None:
    checkpoint = tiny.with_chat_template(tiny.write_llada(tmp_path / "tiny"))
    columns = {name.replace(" ", "_"): value for name, (value, _) in VALUES.items()}
    message = {**USER, "sent": DAY, "score": np.float32(0.5), "tags": np.array(["x"]), "raw": b"\xff", "name": None}
    rows = [{"prompt": np.array([message], dtype=object), **columns} for _ in range(2)]
    passed: list[Any] = []

    def reward(prompts: Any, completions: Any, **others: Any) -> list[float]:
        passed.append((prompts[0][0]["sent"], {name: others[name][0] for name in columns}))
        return [float(i) for i in range(len(prompts))]

    args = config(output_dir=str(tmp_path / "run"), eval_steps=1, eval_samplers={"a": SamplerConfig(steps=2)})
    LFPOTrainer(str(checkpoint), reward, args=args, train_dataset=rows, eval_dataset=rows).train()
    assert all(sent == DAY for sent, _ in passed)
    assert {name: type(value) for name, value in passed[-1][1].items()} == {n: type(v) for n, v in columns.items()}
    record = json.loads((tmp_path / "run/rollouts/step-1.jsonl").read_text().splitlines()[0])
    assert record["prompt"][0]["sent"] == "2026-01-02T03:04:05"
    assert record["prompt"][0]["score"] == 0.5


@pytest.mark.parametrize(
    ("template", "reason"),
    [
        ("{{ raise_exception('Only user turns') }}", "Only user turns"),
        ("{% for m in messages %}{{ m['name'] + 1 }}{% endfor %}", "UndefinedError"),
        ("{% for %}", "TemplateSyntaxError"),
        ("{{ raise_exception('one line\n\nand another') }}", "one line and another"),
    ],
)
def test_a_template_that_raises_names_the_row(tmp_path: Path, template: str, reason: str) -> None:
    write_rows(tmp_path / "rows.jsonl", [{"prompt": "text\n"}, {"prompt": [USER]}])
    args = config(data_file=str(tmp_path / "rows.jsonl"), output_dir=str(tmp_path / "run"))
    model = load_model("embedded")
    with pytest.raises(UserError) as caught:
        LFPOTrainer(model, lambda prompts, **_: [0.0] * len(prompts), args=args, tokenizer=chat(template))
    assert str(caught.value).startswith(f"{tmp_path}/rows.jsonl:2: the chat template cannot render the prompt")
    assert reason in str(caught.value)
    assert "\n" not in str(caught.value)


# Rows without an end


def endless() -> Any:
    for number in itertools.count():
        yield {"prompt": f"row {number}\n"}


class Endless:
    """As a torch IterableDataset: it has __iter__ and no length."""

    def __iter__(self) -> Any:
        return endless()


@pytest.mark.parametrize("make", [endless, Endless], ids=["generator", "iterable"])
def test_an_endless_data_set_gives_what_max_steps_needs_in_its_order(tmp_path: Path, make: Any) -> None:
    args = config(output_dir=str(tmp_path / "run"), max_steps=3, eval_size=2, eval_steps=1)
    reward = lambda prompts, **_: [0.0] * len(prompts)  # noqa: E731
    trainer = LFPOTrainer("embedded", reward, args=args, train_dataset=make(), eval_dataset=make())
    assert [trainer.source.train_row(i)["prompt"] for i in range(6)] == [f"row {i}\n" for i in range(6)]
    assert len(trainer.source.eval_rows) == 2
    with pytest.raises(UserError, match="has no length, so its epochs cannot be counted; give max_steps"):
        LFPOTrainer("embedded", reward, args=config(num_train_epochs=1, max_steps=-1), train_dataset=make())


def test_an_iterable_data_set_of_the_library_is_read_too(tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets")
    given = datasets.IterableDataset.from_generator(endless)
    assert [r.values["prompt"] for r in read_rows(config(), "train", given, 2)] == ["row 0\n", "row 1\n"]


# The mask token


@pytest.mark.parametrize("position", [7, 250])
def test_the_mask_token_id_of_the_configuration_is_taken(tmp_path: Path, position: int) -> None:
    folder = tiny.write_llada(tmp_path / "tiny", mask_token_id=position)
    file = folder / "tokenizer_config.json"
    settings = {k: v for k, v in json.loads(file.read_text()).items() if k != "mask_token"}
    file.write_text(json.dumps(settings))
    assert PreTrainedTokenizerFast.from_pretrained(folder).mask_token is None
    tokenizer, model = load_tokenizer(folder), load_model(folder)
    assert model.mask_id == tokenizer.mask_token_id == position


# Rows that share an object, and columns of several files


def test_a_dict_that_is_yielded_or_returned_again_and_again_gives_different_rows(tmp_path: Path) -> None:
    def reused() -> Any:
        row: dict[str, Any] = {}
        for text in ("a", "b", "c"):
            row["prompt"] = text
            yield row

    assert [r.values["prompt"] for r in read_rows(config(), "train", reused(), 3)] == ["a", "b", "c"]
    write_rows(tmp_path / "rows.jsonl", [{"prompt": text} for text in "abc"])
    mapped = config(data_file=str(tmp_path / "rows.jsonl"), map_row="test_rows.into_one")
    assert [r.values["prompt"] for r in read_rows(mapped, "train")] == ["a", "b", "c"]


ONE: dict[str, Any] = {}


def into_one(row: dict[str, Any]) -> dict[str, Any]:
    ONE.update(row)
    return ONE
