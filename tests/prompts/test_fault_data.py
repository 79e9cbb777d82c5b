"""Faults of data, by kind: formats of files, prompts that begin the answer, and what rows and messages may hold."""

import bz2
import csv
import datetime
import decimal
import gzip
import io
import itertools
import json
import lzma
import math
import os
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

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
from lfpo.prompts.preferences import load_preferences
from lfpo.rollout.episodes import Environment, Episode
from lfpo.train.sft import SFTTrainer
from small_runs import ONE_PASS

ROWS = [{"prompt": "one, two\n", "answer": 3}, {"prompt": 'a "quoted" ü\u2028\n', "answer": 4}]
LLAMA = (  # the template of LLaDA-8B-Instruct: it trims content, and has a generation prompt
    "{% for message in messages %}{{ '<|start_header_id|>' + message['role'] + '<|end_header_id|>\n\n' + "
    "message['content'] | trim + '<|eot_id|>' }}{% endfor %}{% if add_generation_prompt %}"
    "{{ '<|start_header_id|>assistant<|end_header_id|>\n\n' }}{% endif %}"
)


LFS = b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 5\n"
QWEN = tiny.CHATML + "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"


def jsonl(rows: list[dict[str, Any]]) -> bytes:
    return "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows).encode()


def separated(rows: list[dict[str, Any]], delimiter: str) -> bytes:
    out = io.StringIO()
    writer = csv.DictWriter(out, list(rows[0]), delimiter=delimiter)
    writer.writeheader()
    writer.writerows(rows)
    return out.getvalue().encode()


def parquet(rows: list[dict[str, Any]]) -> bytes:
    pyarrow, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    out = pyarrow.BufferOutputStream()
    pq.write_table(pyarrow.Table.from_pylist(rows), out)
    return out.getvalue().to_pybytes()


def arrow(rows: list[dict[str, Any]], kind: str) -> bytes:
    pyarrow = pytest.importorskip("pyarrow")
    table, out = pyarrow.Table.from_pylist(rows), pyarrow.BufferOutputStream()
    with (pyarrow.ipc.new_file if kind == "file" else pyarrow.ipc.new_stream)(out, table.schema) as writer:
        writer.write_table(table)
    return out.getvalue().to_pybytes()


def config(**changes: Any) -> LFPOConfig:
    values: dict[str, Any] = {"output_dir": "run", "sampler": SamplerConfig(gen_length=8, temperature=1.0, steps=4)}
    values |= {"prompts_per_iteration": 2, "num_generations": 2, "optimizer_steps_per_iteration": 1, "threads": 1}
    return LFPOConfig(**(values | {"max_steps": 1, "eval_steps": 0, "objective": ONE_PASS} | changes))


CONTENT = {
    "jsonl": lambda: jsonl(ROWS),
    "jsonl with a byte order mark": lambda: b"\xef\xbb\xbf" + jsonl(ROWS),
    "json list": lambda: json.dumps(ROWS).encode(),
    "indented json list": lambda: json.dumps(ROWS, indent=2).encode(),
    "object with one list": lambda: json.dumps({"version": "1.0", "data": ROWS}).encode(),
    "indented object with one list": lambda: json.dumps({"rows": ROWS, "tags": ["a"]}, indent=1).encode(),
    "csv": lambda: separated(ROWS, ","),
    "csv with semicolons": lambda: separated(ROWS, ";"),
    "tsv": lambda: separated(ROWS, "\t"),
    "parquet": lambda: parquet(ROWS),
    "arrow file": lambda: arrow(ROWS, "file"),
    "arrow stream": lambda: arrow(ROWS, "stream"),
}
NAMES = {"jsonl": "jsonl", "json": "json", "csv": "csv", "tsv": "tsv", "parquet": "parquet", "arrow": "arrow"}


@pytest.mark.parametrize("packing", ["", ".gz", ".xz", ".bz2"])
@pytest.mark.parametrize("kind", CONTENT)
def test_each_format_and_packing_gives_the_same_rows(tmp_path: Path, kind: str, packing: str) -> None:
    ending = next((name for name in NAMES if kind.startswith(name)), "json")
    pack: Any = {"": bytes, ".gz": gzip.compress, ".xz": lzma.compress, ".bz2": bz2.compress}[packing]
    file = tmp_path / f"rows.{ending}{packing}"
    file.write_bytes(pack(CONTENT[kind]()))
    assert [row for row, _ in load_rows(file)] == ROWS


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        ("parquet", "rows.jsonl"),
        ("arrow stream", "rows.csv"),
        ("arrow file", "rows.parquet"),
        ("json list", "rows.jsonl"),
        ("indented json list", "rows.csv"),
        ("jsonl", "rows.json"),
        ("jsonl", "rows.csv"),
        ("jsonl", "rows.txt"),
        ("jsonl", "rows"),
        ("tsv", "rows.csv"),
    ],
)
def test_a_wrong_name_with_good_content_is_read(tmp_path: Path, kind: str, name: str) -> None:
    (tmp_path / name).write_bytes(CONTENT[kind]())
    (tmp_path / f"{name}.2").write_bytes(gzip.compress(CONTENT[kind]()))  # packed, and its name does not say so
    assert [row for row, _ in load_rows(tmp_path / name)] == ROWS
    if kind != "tsv":
        assert [row for row, _ in load_rows(tmp_path / f"{name}.2")] == ROWS


class Table(list[Any]):
    """Iterates over the names of columns, and is no Mapping."""

    def iterrows(self) -> None: ...


class Formatted(list[Any]):
    format: ClassVar = {"type": "pandas"}


COLUMNS = {"prompt": [f"text {i}" for i in range(5000)], "x": [0] * 5000}
LISTS = "expected a list of dicts or a datasets.Dataset, found"


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        (COLUMNS, f"{LISTS} dict of 'prompt', 'x'; give a dict for each row"),
        ({"a": [{"prompt": "x"}] * 5000, "b": []}, f"{LISTS} dict of 'a', 'b'; give one of them: DATA['a']"),
        ({}, f"{LISTS} dict of nothing; give a dict for each row"),
        (5, f"{LISTS} 5"),
        ("org/name", f"{LISTS} 'org/name'; a data set's name is given by dataset_name, and its held-out rows by"),
        (Table(["prompt"]), f'{LISTS} Table; give DATA.to_dict("records")'),
        (Formatted([{"prompt": "x"}]), f"{LISTS} one in the format pandas; give DATA.with_format(None)"),
        (DataLoader([{"prompt": "x"}]), f"{LISTS} DataLoader; give its dataset, as batches are no rows"),  # type: ignore[arg-type]
    ],
)
@pytest.mark.parametrize("split", ["train", "eval"])
def test_rows_of_another_sort_are_named_and_not_printed(rows: Any, said: str, split: str) -> None:
    with pytest.raises(UserError, match=rf"^{split}_dataset: {re.escape(said)}") as caught:
        read_rows(LFPOConfig("run"), split, rows)
    assert len(str(caught.value)) < 200


def test_splits_of_the_hub_s_library_say_how_to_take_one() -> None:
    datasets = pytest.importorskip("datasets")
    rows = datasets.Dataset.from_list([{"prompt": "x"}])
    with pytest.raises(UserError, match=r"found DatasetDict of 'train'; give one of them: DATA\['train'\]"):
        read_rows(LFPOConfig("run"), "train", datasets.DatasetDict({"train": rows}))
    lazy = datasets.IterableDatasetDict({"train": rows.to_iterable_dataset()})
    with pytest.raises(UserError, match=r"IterableDatasetDict of 'train'; give one of them: DATA\['train'\]"):
        read_rows(LFPOConfig("run"), "train", lazy)
    with pytest.raises(UserError, match="one in the format pandas"):
        read_rows(LFPOConfig("run"), "train", rows.with_format("pandas"))
    assert len(read_rows(LFPOConfig("run"), "train", rows.with_format("numpy"))) == 1


def test_empty_tools_and_tools_of_text_prompts_are_no_error(tmp_path: Path) -> None:
    rows = [{"prompt": [USER], "tools": None}, {"prompt": [USER], "tools": []}, {"prompt": "a", "tools": ["f"]}]
    (tmp_path / "rows.json").write_text(json.dumps(rows))
    assert [row for row, _ in load_rows(tmp_path / "rows.json", required=("prompt",))] == rows


def test_a_single_row_of_messages_is_a_row_and_not_a_list_of_rows(tmp_path: Path) -> None:
    row = {"prompt": [{"role": "user", "content": "a"}], "tests": [{"input": 1}]}
    for name, text in (
        ("a.json", json.dumps(row)),
        ("b.jsonl", json.dumps(row)),
        ("c.json", json.dumps(row, indent=1)),
    ):
        (tmp_path / name).write_text(text)
        assert [found for found, _ in load_rows(tmp_path / name)] == [row]


def test_a_pattern_joins_its_files_in_the_order_of_their_names(tmp_path: Path) -> None:
    for number in (2, 0, 1):
        (tmp_path / f"part-{number}.jsonl").write_bytes(jsonl([{"prompt": str(number), "answer": "x"}]))
    (tmp_path / "deep").mkdir()
    (tmp_path / "deep/part-9.csv").write_bytes(separated([{"prompt": "nine", "answer": "x"}], ","))
    found = load_rows(tmp_path / "part-*.jsonl")
    assert [(row["prompt"], Path(where).name) for row, where in found] == [
        (str(number), f"part-{number}.jsonl:1") for number in range(3)
    ]
    assert {row["prompt"] for row, _ in load_rows(f"{tmp_path}/**/part-*")} == {"0", "1", "2", "nine"}
    (tmp_path / "a[1].jsonl").write_bytes(jsonl(ROWS))  # a name that looks like a pattern
    assert len(load_rows(tmp_path / "a[1].jsonl")) == 2


def test_cells_of_a_csv_are_numbers_where_the_whole_column_is(tmp_path: Path) -> None:
    file = tmp_path / "rows.csv"
    file.write_text("prompt,whole,part,code,truth,mixed\na,1,0.5,007,true,1\nb,-2,1e3,010,False,x\nc,,2,1,,3\n")
    assert [row for row, _ in load_rows(file)] == [
        {"prompt": "a", "whole": 1, "part": 0.5, "code": "007", "truth": True, "mixed": "1"},
        {"prompt": "b", "whole": -2, "part": 1000.0, "code": "010", "truth": False, "mixed": "x"},
        {"prompt": "c", "whole": None, "part": 2.0, "code": "1", "truth": None, "mixed": "3"},
    ]
    assert load_rows(file, typed=False)[0][0]["whole"] == "1"
    file.write_text('prompt,answer\n"' + "x" * 200_000 + '",1\n')
    assert len(load_rows(file)[0][0]["prompt"]) == 200_000


@pytest.mark.parametrize(
    ("cells", "values"),
    [
        (["12345678901234567890", "-1"], [12345678901234567890, -1]),
        (["9" * 400, "1"], [int("9" * 400), 1]),
        (["9" * 5000, "1"], ["9" * 5000, "1"]),
        (["1.5", "12345678901234567890"], ["1.5", "12345678901234567890"]),
        (["1.5", "4503599627370496"], [1.5, 4503599627370496.0]),
        (["1e400", "1"], ["1e400", "1"]),
        (["-1e400", "1"], ["-1e400", "1"]),
        (["\u0661\u0662", "1"], ["\u0661\u0662", "1"]),
        (["1.\u0662", "1"], ["1.\u0662", "1"]),
        (["1", "2.5", "NaN"], [1.0, 2.5, None]),
        (["1", "NA", "n/a", "null", "None"], [1, None, None, None, None]),
        (["true", "nan"], [True, None]),
        (["NaN", "NA"], ["NaN", "NA"]),
        (["a", "NA"], ["a", "NA"]),
        ([" 1", "2 ", "\t3"], [1, 2, 3]),
        ([" 0.5", " NaN"], [0.5, None]),
        ([" true", "False "], [True, False]),
        ([" a", "1"], [" a", "1"]),
        ([" ", "1"], [" ", "1"]),
        (["inf", "1"], ["inf", "1"]),
    ],
)
def test_cells_become_exact_numbers_or_stay_text(tmp_path: Path, cells: list[str], values: list[object]) -> None:
    file = tmp_path / "rows.csv"
    file.write_text("prompt, x\n" + "".join(f"a,{cell}\n" for cell in cells))
    found = [row["x"] for row, _ in load_rows(file)]
    assert found == values and list(map(type, found)) == list(map(type, values))


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("rows.csv", b"prompt,answer\na,1\n,2\n", "rows.csv:3: column 'prompt' is null, or an empty cell"),
        ("rows.csv", b"prompt,answer\na,1,2\n", "rows.csv:2: 3 cells, and the header has 2"),
        ("rows.csv", b"prompt,prompt\na,1\n", "rows.csv:1: two columns are named 'prompt'"),
        ("rows.csv", b"prompt,answer\n", "rows.csv: no rows"),
        ("rows.csv", b"", "rows.csv: no rows"),
        (
            "rows.csv",
            b'prompt,answer\na,1\n"b,2\nc,3\n',
            "rows.csv:4: not readable as CSV (unexpected end of data",
        ),
        (
            "rows.jsonl",
            b'{"prompt": "a", "prompt": "b"}\n',
            "rows.jsonl:1: not valid JSON (key 'prompt' is given twice)",
        ),
        ("rows.json", b'[{"prompt": "a"}, {"prompt": "a", "prompt": "b"}]', "(key 'prompt' is given twice)"),
        ("rows.jsonl", b'[\n{"prompt": "a", "a": {"b": 1, "b": 1}}\n]', "(key 'b' is given twice)"),
        ("rows.csv", b"question,answer\na,b\n", "rows.csv:2: column 'prompt' is missing (found: question, answer)"),
        ("rows.csv", b"\xff\xfea,b\n", "rows.csv: not readable as UTF-8 text"),
        ("rows.json", b'[{"prompt": "a"}, 3]', "rows.json: row 2: expected a JSON object, found int"),
        ("rows.json", b'[{"prompt": "a"}, {"prompt": NaN}]', "rows.json: row 2: column 'prompt' is empty (NaN)"),
        ("rows.json", b'[{"prompt": "a"', "rows.json: not valid JSON"),
        (
            "rows.json",
            b'[{"prompt": [{"role": "user", "content": "a"}], "tools": [{"name": "f"}]}]',
            "row 1: column 'tools' is not given to the chat template, which gets messages alone",
        ),
        (
            "rows.json",
            b'[{"prompt": [{"role": "user", "content": "a"}], "chat_template_kwargs": {"enable_thinking": false}}]',
            "row 1: column 'chat_template_kwargs' is not given to the chat template",
        ),
        ("rows.json", b'{"train": [{"q": 1}], "test": [{"q": 2}]}', "holds several lists of rows (train, test)"),
        ("rows.jsonl", b'{"prompt": "a"}\n["b"]\n', "rows.jsonl:2: expected a JSON object, found list"),
        ("rows.jsonl", b"prompt,answer\na,b\n", "rows.jsonl:1: not valid JSON"),
        ("rows.txt", b"one prompt a line\n", "rows.txt: expected JSONL, a JSON list, or a file that ends in .jsonl"),
        ("rows.parquet", b"PAR1 and no more", "rows.parquet: not readable as Parquet"),
        ("rows.arrow", b"ARROW1 and no more", "rows.arrow: not readable as Arrow"),
        ("rows.jsonl.gz", b"\x1f\x8b broken", "rows.jsonl.gz: not readable"),
        ("rows.jsonl", LFS, "rows.jsonl: is a pointer of Git LFS, and not the data; run `git lfs pull`"),
        ("rows.csv", LFS, "rows.csv: is a pointer of Git LFS"),
        ("rows.parquet", LFS, "rows.parquet: is a pointer of Git LFS"),
        (
            "rows.jsonl",
            b'{"Question": "a", "Answer": "b"}\n',
            "as in `columns: {Question: prompt}`",
        ),
        ("rows.json", b'{"prompt": ["a", "b"], "x": [1, 2]}', "rows.json: row 1: holds whole columns, and a row is"),
        ("rows.json", b'{"prompt": {"0": "a", "1": "b"}, "x": {"0": 1, "1": 2}}', "row 1: holds whole columns"),
        ("rows.json", b'{"prompt": [[{"role": "user", "content": "a"}]]}', "row 1: holds whole columns"),
        ("rows.json", b'{"prompt": ["a", "b"], "x": 1}', "row 1: a prompt list must hold messages"),
        ("rows.json", b'{"prompt": [{"role": "user"}]}', "a prompt list must hold messages"),
        ("rows.zip", b"PK\x03\x04...", "rows.zip: is a zip archive"),
        ("*.none", b"", "*.none: no file matches this pattern"),
        (".", b"", "is a folder; give its files, such as"),
    ],
)
def test_what_cannot_be_read_is_one_sentence(tmp_path: Path, name: str, content: bytes, said: str) -> None:
    if name.endswith(("parquet", "arrow")):
        pytest.importorskip("pyarrow")
    if "*" not in name and name != ".":
        (tmp_path / name).write_bytes(content)
    with pytest.raises(UserError) as caught:
        load_rows(tmp_path / name, required=("prompt",))
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


def test_without_pyarrow_a_parquet_file_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "rows.parquet").write_bytes(b"PAR1")
    monkeypatch.setitem(__import__("sys").modules, "pyarrow", None)
    with pytest.raises(UserError, match=r"pip install 'lfpo\[hub\]'"):
        load_rows(tmp_path / "rows.parquet")


def test_every_command_reads_the_same_formats(tmp_path: Path) -> None:
    (tmp_path / "train.tsv").write_bytes(separated(ROWS, "\t"))
    (tmp_path / "held_out.json").write_text(json.dumps(ROWS[:1]))
    args = config(data_file=str(tmp_path / "train.tsv"), eval_file=str(tmp_path / "held_out.json"))
    assert [record.values for record in read_rows(args, "train")] == ROWS
    assert [record.where for record in read_rows(args, "eval")] == [f"{tmp_path}/held_out.json: row 1"]
    pairs = [{"prompt": "a", "chosen": "b", "rejected": "c"}]
    (tmp_path / "pairs.csv").write_bytes(separated(pairs, ","))
    assert [(p.prompt, p.chosen, p.rejected) for p in load_preferences(tmp_path / "pairs.csv")] == [("a", "b", "c")]
    (tmp_path / "sft.csv.bz2").write_bytes(bz2.compress(separated([{"prompt": "a\n", "completion": "b"}], ",")))
    trainer = SFTTrainer(SFTConfig("run", "embedded", data_file=str(tmp_path / "sft.csv.bz2"), gen_length=4, steps=1))
    assert trainer.draw(0)[0] == encode_prompt(trainer.tokenizer, "a\n")


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
    "keys": ({(1, 2): DAY}, {"(1, 2)": "2026-01-02T03:04:05"}),
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
        ("{% if messages[0]['content'] / 2 %}{% endif %}", "TypeError"),
        ("{% for %}", "TemplateSyntaxError"),
        ("{{ raise_exception('one line\n\nand another') }}", "one line and another"),
    ],
)
def test_a_template_that_raises_names_the_row(tmp_path: Path, template: str, reason: str) -> None:
    (tmp_path / "rows.jsonl").write_bytes(jsonl([{"prompt": "text\n"}, {"prompt": [USER]}]))
    args = config(data_file=str(tmp_path / "rows.jsonl"), output_dir=str(tmp_path / "run"))
    model = load_model("embedded")
    with pytest.raises(UserError) as caught:
        LFPOTrainer(model, lambda prompts, **_: [0.0] * len(prompts), args=args, tokenizer=chat(template))
    assert str(caught.value).startswith(f"{tmp_path}/rows.jsonl:2: the chat template cannot render the prompt")
    assert reason in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("prompt", [math.nan, None, np.float64("nan"), 3, "", " "])
def test_a_prompt_that_is_empty_is_one_sentence_with_its_row(prompt: Any) -> None:
    with pytest.raises(UserError, match=r"train_dataset\[1\]: .*prompt"):
        read_rows(config(), "train", [{"prompt": "a"}, {"prompt": prompt}])


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
    (tmp_path / "rows.jsonl").write_bytes(jsonl([{"prompt": text} for text in "abc"]))
    mapped = config(data_file=str(tmp_path / "rows.jsonl"), map_row="test_fault_data.into_one")
    assert [r.values["prompt"] for r in read_rows(mapped, "train")] == ["a", "b", "c"]


ONE: dict[str, Any] = {}


def into_one(row: dict[str, Any]) -> dict[str, Any]:
    ONE.update(row)
    return ONE


def test_a_column_has_one_type_in_all_files_of_a_pattern_and_texts_stay_text(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("prompt,answer,completion\n1,4,7\n")
    (tmp_path / "b.csv").write_text("prompt,answer,completion\n2,four,8\n")
    assert [row for row, _ in load_rows(tmp_path / "*.csv")] == [
        {"prompt": "1", "answer": "4", "completion": "7"},
        {"prompt": "2", "answer": "four", "completion": "8"},
    ]
    assert load_rows(tmp_path / "a.csv")[0][0] == {"prompt": "1", "answer": 4, "completion": "7"}


def test_a_file_of_a_pattern_may_lack_a_column_of_numbers(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("prompt,level,right\n1,4,true\n")
    (tmp_path / "b.csv").write_text("prompt,right\n2,false\n")
    (tmp_path / "c.tsv").write_text("prompt\tlevel\n3\t1.5\n")
    assert [row for row, _ in load_rows(tmp_path / "*.?sv")] == [
        {"prompt": "1", "level": 4.0, "right": True},
        {"prompt": "2", "right": False},
        {"prompt": "3", "level": 1.5},
    ]


def test_a_pipe_is_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "rows.jsonl")
    with pytest.raises(UserError, match=r"rows\.jsonl: is a pipe, and rows are read more than once"):
        load_rows(tmp_path / "rows.jsonl")
