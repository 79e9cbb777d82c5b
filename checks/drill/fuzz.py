"""Random inputs: each must be accepted, or refused with one sentence, in time and without writing files elsewhere."""

from __future__ import annotations

import json
import os
import struct
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import hypothesis
import yaml
from hypothesis import configuration
from hypothesis import strategies as st

from drill.harness import Drill, Row
from lfpo.config.arguments import parse_overrides
from lfpo.config.build import build, load_yaml
from lfpo.config.errors import UserError
from lfpo.config.tasks import TASKS
from lfpo.config.train import LFPOConfig
from lfpo.core.attempts import RewardTimeout, time_limit
from lfpo.core.encoding import encode_rows
from lfpo.models import init_model, load_model, load_tokenizer
from lfpo.models.loading import save_model
from lfpo.prompts.files import load_rows
from lfpo.prompts.tasks import get_task
from lfpo.rewards import choices, code, formats, math, sudoku

Inputs = tuple[Any, Callable[[Any], None]]  # what is drawn, and what takes it
SECONDS = 20.0  # that one input may take
TINY: dict[str, Any] = yaml.safe_load(
    "{model_type: llada, d_model: 8, n_layers: 1, n_heads: 2, mlp_hidden_size: 8, vocab_size: 32, rms_norm_eps: 1.0e-5,"
    " max_sequence_length: 64, rope_theta: 9, weight_tying: false, mask_token_id: 2, eos_token_id: 1, pad_token_id: 1}"
)
# What graders look for, so that some random texts are almost answers.
PIECES = [
    *("#### ", "\\boxed{", "\\boxed", "}", "{", "<answer>", "</answer>", "<reasoning>", "</reasoning>", "```python\n"),
    *("```", "```\n", "def f(x):\n", "    return x\n", "lambda:", "(" * 50, ")" * 50, "[" * 20, "\\frac{1}{2}"),
    *("\\frac", "1234\n3412\n2143\n4321", "nan", "inf", "\x00", "\ufeff", "\u2028", "\u200b", "\ud7ff", "🂡"),
    *("+", "-", "*", "/", "**", "=", ",", ".", " ", "\n", "1", "2", "0", "10", "9" * 30, "1e999", "-0", "½", "٣", "²"),
    *("A", "B", "(A)"),
]
_PLAIN = st.none() | st.booleans() | st.integers(-(2**40), 2**70) | st.floats() | st.text(max_size=20)
# Anything that JSON or YAML can hold.
VALUES = st.recursive(
    _PLAIN, lambda v: st.lists(v, max_size=3) | st.dictionaries(st.text(max_size=8), v, max_size=3), max_leaves=20
)


def fuzz(drill: Drill) -> list[Row]:
    """A quarter each: configurations, data rows, checkpoint headers, completions."""
    folder = drill.folder("fuzz")
    folder.mkdir(parents=True)
    configuration.set_hypothesis_home_dir(folder / "hypothesis")
    watched, each = Watch(folder), drill.settings.fuzz // 4
    kinds = {
        "configuration files": _configurations,
        "data rows": _rows,
        "checkpoint headers": _headers,
        "completions": _completions,
    }
    return [feed(drill.settings.seed, name, *make(folder), each, watched) for name, make in kinds.items()]


def feed(seed: int, name: str, strategy: Any, take: Callable[[Any], None], count: int, watched: Watch) -> Row:
    """Draw `count` inputs and call `take` with each."""
    row, started = Row(f"fuzz: {name}"), time.monotonic()
    watched.strays.clear()
    slowest, refused = 0.0, 0

    def one(value: Any) -> None:
        nonlocal slowest, refused
        begun, watched.on, wrong = time.monotonic(), True, ""
        try:
            with time_limit(SECONDS):
                take(value)
        except UserError as error:
            refused += 1
            wrong = "" if str(error).strip() else f"an empty message for {value!r:.200}"
        except RewardTimeout:
            wrong = f"hung on {value!r:.200}"
        except Exception as error:  # what the fuzz is looking for
            where = traceback.extract_tb(error.__traceback__)[-1]
            wrong = f"{type(error).__name__}: {error!s:.100} ({where.filename}:{where.lineno}) on {value!r:.200}"
        finally:
            watched.on = False
        row.add(wrong)
        slowest = max(slowest, time.monotonic() - begun)

    if count:
        settings = hypothesis.settings(
            max_examples=count,
            deadline=None,
            database=None,
            suppress_health_check=list(hypothesis.HealthCheck),
            phases=[hypothesis.Phase.generate],
        )
        hypothesis.seed(seed)(settings(hypothesis.given(strategy)(one)))()
    row.failures += [f"wrote {sorted(watched.strays)[:3]}"] if watched.strays else []
    took = time.monotonic() - started
    row.note = f"{refused:,} refused, the rest accepted; slowest {slowest:.1f} s, all {took:.0f} s; no stray write"
    return row


class Watch:
    """Files opened for writing outside `folder` while `on`."""

    def __init__(self, folder: Path) -> None:
        self.on, self.strays, self.allowed = False, set[str](), (str(folder.resolve()), "/dev/")
        sys.addaudithook(self._see)

    def _see(self, event: str, args: tuple[Any, ...]) -> None:
        if self.on and event == "open" and isinstance(args[0], str | bytes) and isinstance(args[2], int):
            path = os.path.realpath(os.fsdecode(args[0]))
            if args[2] & (os.O_WRONLY | os.O_RDWR | os.O_CREAT) and not path.startswith(self.allowed):
                self.strays |= set() if path.endswith(".pyc") or ".pyc." in path else {path}


def _configurations(folder: Path) -> Inputs:
    """Mappings near the real keys as YAML, any text as YAML, and command lines."""
    fields = LFPOConfig.__dataclass_fields__
    typed = {int: st.integers(-1, 99), float: st.floats(-0.1, 2), bool: st.booleans(), str: st.text(max_size=5)}
    hints = {name: typed[type(field.default)] for name, field in fields.items() if type(field.default) in typed}
    near = st.fixed_dictionaries({}, optional=hints)
    names = st.sampled_from(sorted(fields)) | st.text(max_size=10)
    nested = st.dictionaries(st.sampled_from(["name", "beta", "temperature", "steps", "threshold", "r"]), VALUES)
    wild = st.dictionaries(names, VALUES | nested, max_size=2)
    one = st.sampled_from(sorted(hints)).flatmap(lambda name: st.fixed_dictionaries({name: hints[name]}))
    mapping = (near | wild | one).map(lambda values: {"output_dir": "x", **values})
    text = st.text(max_size=200) | st.lists(st.sampled_from(list("{}[]:-&*!|>'\"%@`#,\n\t ~01ab"))).map("".join)
    word = st.sampled_from(["--max_steps", "--objective.beta", "--output_dir=x", "3", "0.5"]) | st.text(max_size=10)
    line = st.lists(word | word.map("--{}".format), max_size=6)
    file = folder / "config.yaml"

    def take(value: Any) -> None:
        if isinstance(value, list):
            build(LFPOConfig, parse_overrides(value), "line")
            return
        written = value if isinstance(value, str) else yaml.safe_dump(value, allow_unicode=True)
        file.write_text(written, encoding="utf-8", errors="surrogatepass")
        build(LFPOConfig, load_yaml(file), "file")

    return mapping | mapping | text | line, take


def _rows(folder: Path) -> Inputs:
    """Lines of JSON near real rows, and any bytes, read and then encoded for the embedded model."""
    model, tokenizer = load_model("embedded"), load_tokenizer("embedded")
    message = st.fixed_dictionaries({"role": VALUES | st.just("user"), "content": VALUES | st.text()})
    prompt = st.text(st.characters(), max_size=40) | st.lists(message, max_size=3) | VALUES
    row = st.fixed_dictionaries({"prompt": prompt}, optional={"answer": VALUES}) | VALUES
    lines = st.lists(row, max_size=3).map(lambda rows: "\n".join(json.dumps(r) for r in rows).encode())
    file = folder / "rows.jsonl"

    def take(value: bytes) -> None:
        file.write_bytes(value)
        for record in load_rows(file, required=("prompt",)):
            encode_rows([record.values], tokenizer, model, 4)

    return lines | lines | st.binary(max_size=60), take


def _headers(folder: Path) -> Inputs:
    """A small checkpoint whose safetensors header was changed."""
    good, bad = folder / "good", folder / "bad"
    save_model(init_model(TINY, seed=0), good)
    bad.mkdir()
    (bad / "config.json").write_text(json.dumps(TINY))
    weights = (good / "model.safetensors").read_bytes()
    size = struct.unpack("<Q", weights[:8])[0]
    flips = st.lists(st.tuples(st.integers(0, 8 + size - 1), st.integers(0, 255)), min_size=1, max_size=4)
    cut = st.integers(0, len(weights) - 1)

    def take(value: Any) -> None:
        data = bytearray(weights)
        if isinstance(value, int):
            del data[value:]
        else:
            for place, byte in value:
                data[place] = byte
        (bad / "model.safetensors").write_bytes(data)
        load_model(bad)

    return st.one_of(flips, cut), take


def _completions(folder: Path) -> Inputs:
    """Every grader but the symbolic and the sandboxed one, which run in other processes."""
    tasks = [get_task(name) for name in TASKS]
    rows = [task.row("test", 0) for task in tasks]
    sudoku_row = {"puzzle": ["0000000000000000"], "answer": ["1234341221434321"]}
    named = [f for name, f in vars(formats).items() if callable(f) and not name.startswith("_")]
    graders = [f for f in named if getattr(f, "__module__", "") == formats.__name__]

    def take(text: str) -> None:
        for task, row in zip(tasks, rows, strict=True):
            assert task.correct(text, row) in (True, False)
        for grader in graders:
            assert all(isinstance(v, float) for v in grader([""], [text]))
        assert code.syntax_compliance([""], [text])[0] in (0.0, 1.0)
        assert math.number_accuracy([""], [text], ["12"])[0] in (0.0, 1.0)
        assert choices.choice_accuracy([""], [text], ["A"], [["x", "y"]])[0] in (0.0, 1.0)
        assert 0 <= sudoku.sudoku_accuracy([""], [text], **sudoku_row)[0] <= 1

    near = st.lists(st.sampled_from(PIECES) | st.text(max_size=5), max_size=30).map("".join)
    return near | st.text(max_size=200), take
