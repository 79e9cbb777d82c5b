"""Which part of a completion is the program, by kind of spelling: where fences may stand, and which block counts."""

from typing import Any

import pytest

from lfpo.rewards.code import Grader, code_format, code_job, syntax_compliance
from lfpo.rewards.program import defined, extract_code
from lfpo.sandbox import Limits, Sandbox

RIGHT = "def f(n):\n    return n + 1"
BLOCK = f"```python\n{RIGHT}\n```"
DRAFT = "def f(n): return 0"
FENCES = {  # completion: of which the program is RIGHT
    "draft after text": f"Draft: ```python\n{DRAFT}\n```\nFixed:\n{BLOCK}",
    "thought": f"<think>```python\n{DRAFT}\n```</think>\n{BLOCK}",
    "thought that ends on the last line of code": f"<think>\n```python\n{DRAFT}```</think>\n{BLOCK}",
    "answer": f"<answer>{BLOCK}</answer>",
    "answer in a reasoned reply": f"<reasoning>Use `n`, so ```n + 1``` it is.</reasoning>\n<answer>{BLOCK}</answer>",
    "answer on lines of its own": f"<answer>\n{BLOCK} </answer> \n",
    "after text": f"Here: {BLOCK}",
    "after bold text": f"**Solution:**{BLOCK}",
    "bare, after text": f"Here: ```\n{RIGHT}\n```",
    "list": f"1. {BLOCK}",
    "indented list": "1. ```python\n   def f(n):\n       return n + 1\n   ```",
    "list with text": "- Then: ```python\n  def f(n):\n      return n + 1\n  ```",
    "tildes": f"~~~python\n{RIGHT}\n~~~",
    "tildes with backticks inside": f"~~~python\n{RIGHT}\n# ```\n~~~",
    "four backticks": f"````python\n{RIGHT}\n````",
    "end on the last line of code": f"```python\n{RIGHT}```",
    "end on the last line of code, then text": f"```python\n{RIGHT}```\nThat is `f`. Not ```g```.",
    "byte order mark": f"\ufeff{BLOCK}",
    "line ends of Windows": f"Here: {BLOCK}\r\n".replace("\n", "\r\n"),
    "sentence with a span": f"The marks ```python``` begin it.\n{BLOCK}",
    "text of one sort of fence": f"A line of ``` and ~~~ is a fence; say so in the end.\n{BLOCK}",
    "draft without an end": f"<think>```python\n{DRAFT}\nNo, that is wrong.</think>\n{BLOCK}",
    "draft without an end, after others": f"{BLOCK}\nOr:\n```python\ndef f(n):\n    return [\n{BLOCK}",
}


@pytest.mark.parametrize("name", FENCES)
def test_a_program_is_found_wherever_its_fences_stand(name: str) -> None:
    found: dict[str, object] = {}
    exec(extract_code(FENCES[name], "f"), found)
    assert found["f"](1) == 2  # type: ignore[operator]
    assert syntax_compliance([""], [FENCES[name]], entry_point=["f"]) == [1]
    assert extract_code(FENCES[name]) == extract_code(FENCES[name], "f")


def test_what_is_not_python_in_such_fences_stays_wrong() -> None:
    wrong = [text.replace(RIGHT, "def f(n) return n").replace(DRAFT, "def f(n) 0") for text in FENCES.values()]
    changed = [text for text, before in zip(wrong, FENCES.values(), strict=True) if text != before]
    names = ["f"] * len(changed)
    assert len(changed) > 15 and syntax_compliance(names, changed, entry_point=names) == [0] * len(changed)


def test_the_format_of_a_block_counts_wherever_it_stands() -> None:
    good = ["answer", "after text", "list", "tildes", "end on the last line of code", "byte order mark"]
    good += ["line ends of Windows", "indented list"]
    assert code_format([""] * len(good), [FENCES[name] for name in good]) == [1.0] * len(good)
    bad = [FENCES["draft after text"], FENCES["thought"], f"Here: {BLOCK[:-3]}", f"{BLOCK}\n~~~", "```python```"]
    assert code_format([""] * 5, bad) == [0] * 5
    assert code_format([""], ["Here: ```python\ndef f(n) 0\n```"]) == [0.5]


@pytest.mark.parametrize("code", ["f = lambda n: n + 1", "async def f(n): return n + 1", "class f: pass"])
def test_the_last_block_that_defines_the_name_counts_however_it_does(code: str) -> None:
    draft = "import os\ndef f(n): return 0"
    completion = f"```python\n{draft}\n```\nBetter:\n```python\n{code}\n```\nUse it:\n```\nf(1)\n```"
    assert extract_code(completion, "f") == f"{code}\n"


OTHERS = [
    "from solution import f",
    "with open('x') as f: pass",
    "for f in [1]: pass",
    "import f.g",
    "x.f = 1",
    "f == 1",
]
OTHERS += ["def g():\n    f = 1", "class A:\n    def f(self): pass", "print([f for f in 'a'])"]


@pytest.mark.parametrize("code", OTHERS)
def test_a_block_that_uses_the_name_otherwise_is_not_the_program(code: str) -> None:
    assert "f" not in defined(code)
    assert extract_code(f"{BLOCK}\nTry it:\n```python\n{code}\n```", "f") == f"{RIGHT}\n"
    assert extract_code(f"```python\n{code}\n```", "f") == f"{code}\n"  # nothing else defines it


@pytest.mark.parametrize(
    ("completion", "code"),
    [
        (f"Input:\n```\n[1, 2]\n```\n{BLOCK}", RIGHT),
        (f"Input:\n```\n3 1 2\n```\nOutput:\n```\n6\n```\n{BLOCK}\nIt prints\n```\n6\n```", RIGHT),
        (f"{BLOCK}\nUse it:\n```python\nprint(f(2))\n```", RIGHT),
        (f"```python\n{DRAFT}\n```\nNo:\n{BLOCK}", RIGHT),
        ("```\n3 1 2\n```\n```python\nprint(3)\n```", "print(3)"),
        ("```\nnot code\n```\n```\nnor this\n```", "not code"),
        ("```bash\nls\n```\n```Python\nx = 1\n```", "x = 1"),
        ("```py\nx = 1\n", "x = 1"),
        ("```py3\nx = 1\n```", "x = 1"),
    ],
)
def test_without_a_name_the_last_block_with_a_program_counts(completion: str, code: str) -> None:
    assert extract_code(completion) == f"{code}\n"


def test_the_name_comes_from_the_suite_or_the_solution_where_the_row_has_none() -> None:
    completion = f"```\nn = [1]\n```\n{BLOCK}\nA helper:\n```python\ndef main(): print(f(1))\n```"
    plain = {"tests": ["assert f(1) == 2", "assert f(2) == 3"]}
    helped = {"tests": ["assert close(f(1), 2)"], "solution": f"def close(a, b): return a == b\n{RIGHT}"}
    two = {"tests": ["assert f(1) == 2", "assert g(1) == 1"], "solution": f"{RIGHT}\ndef g(n): return n"}
    for row in (plain, {**plain, "solution": RIGHT}, {**plain, "entry_point": ""}):
        assert code_job(completion, row).program == f"{RIGHT}\n"
    assert code_job(completion.replace("main", "close"), {**helped, "functions": ["f"]}).program == f"{RIGHT}\n"
    pair = f"```\n{DRAFT}\n```\nCorrected:\n```\n{RIGHT}\ndef g(n): return n\n```"
    assert code_job(pair, two).program == f"{RIGHT}\ndef g(n): return n\n"
    grader = Grader(Sandbox(limits=Limits(seconds=30), unsafe="root"))
    rows: list[dict[str, Any]] = [plain, {**plain, "solution": RIGHT}, two]
    columns = {key: [row.get(key, "") for row in rows] for key in ("tests", "solution")}
    assert grader.pass_rate([""] * 3, [completion, FENCES["answer"], pair], **columns) == [1, 1, 1]


def test_a_body_for_a_header_is_judged_as_before() -> None:
    row = {"tests": ["assert f(1) == 2"], "entry_point": "f", "header": 'def f(n):\n    """Add."""\n'}
    job = code_job("```python\n    return n + 1\n```\nFor example:\n```python\nprint(f(1))\n```", row)
    assert job.program == 'def f(n):\n    """Add."""\n\n    return n + 1\n'
