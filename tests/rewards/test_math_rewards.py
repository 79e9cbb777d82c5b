"""Graders of reasoning answers: correct ones in many spellings, wrong ones that look similar, hostile text."""

import importlib.util
import json
import os
import random
import time
import warnings
from collections.abc import Callable, Iterator
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lfpo.config.errors import UserError
from lfpo.rewards import algebra, choices, countdown, formats, math, sudoku
from lfpo.rewards.answers import marked_answer
from lfpo.rewards.child_process import ChildFailed
from lfpo.rewards.math import equivalent, math_accuracy, number_accuracy
from lfpo.rewards.numbers import to_number

OWN = Path(__file__).parents[1] / "data"
DATA = Path(os.environ.get("LFPO_DATA") or OWN)  # a folder with more rows
MEGABYTE = 1_000_000


def rows(name: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (DATA / name).read_text().splitlines()]


GSM8K = [row["answer"].split("####")[1].strip() for row in rows("gsm8k/train.jsonl") + rows("gsm8k/test.jsonl")]
MATH = [row["answer"] for row in rows("math500/test.jsonl") + rows("math/train.jsonl") if row["answer"]]


def accepts(completion: str, gold: str) -> bool:
    return math_accuracy(None, [completion], [gold]) == [1.0]


def is_number(completion: str, gold: str) -> bool:
    return number_accuracy(None, [completion], [gold]) == [1.0]


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("so #### 72", "72"),
        ("#### 72\n", "72"),
        ("#### 5\nno, #### 6", "6"),
        ("\\boxed{5} then \\boxed{\\frac{1}{2}}", "\\frac{1}{2}"),
        ("<answer>\n\\boxed{7}\n</answer>", "7"),
        ("<answer>#### 7</answer>", "7"),
        ("<answer>7</answer> or <answer> 8 </answer>", "8"),
        ("<answer>7</answer>\n#### 8", "8"),
        ("#### $\\boxed{9}$", "9"),
        ("\\fbox{3}", "3"),
        ("\\boxed{\\{1, 2\\}}", "\\{1, 2\\}"),
        ("\\boxed 2$", "2"),
        ("\\boxed {4}", "4"),
        ("\\boxed4", "4"),
        ("<answer>4</answer></answer>", "4"),
        ("\\boxed{4} since \\boxed{", "4"),
        ("Answer: \\boxed{5}\n\n#### Check\nWe check 2+3=5", "5"),
        ("#### yes", "yes"),
        ("The roots are $\\boxed{3}$ and $\\boxed{4}$.", "3, 4"),
        ("first \\boxed{3}. Then \\boxed{4}", "4"),
        ("<answer>The answer is $\\boxed{4}$.</answer>", "4"),
        ("<answer>x = \\boxed{4}</answer>", "4"),
        ("<answer>2+2 = 4\nSo \\boxed{4}</answer>", "4"),
        ("<answer>-\\boxed{4}</answer>", "-\\boxed{4}"),
        ("<answer>not \\boxed{4}</answer>", "not \\boxed{4}"),
        ("<answer>3, \\boxed{4}</answer>", "3, \\boxed{4}"),
        ("<answer>\\boxed{4}00</answer>", "\\boxed{4}00"),
        ("<answer>\\frac{\\boxed{4}}{2}</answer>", "\\frac{\\boxed{4}}{2}"),
        ("<answer>3 or #### 4</answer>", "3 or #### 4"),
        ("\\boxed{-\\boxed{4}}", "-\\boxed{4}"),
        ("<answer>Therefore, \\boxed{4}</answer>", "4"),
        ("<answer>答案是\\boxed{4}</answer>", "4"),
        ("<answer>\\textbf{\\boxed{4}}</answer>", "4"),
        ("<answer>For n = 3, we get 2 + 2 = \\boxed{4}</answer>", "4"),
        ("<answer>\\boxed{7} million</answer>", "\\boxed{7} million"),
        ("#### -\\boxed{7}", "-\\boxed{7}"),
        ("#### B\n\nSo B.", "B"),
        ("the answer is 7", None),
        ("\\boxed{7", None),
        ("<answer>7", None),
        ("7</answer>", None),
        ("", None),
    ],
)
def test_the_last_closed_mark_is_the_answer(text: str, answer: str | None) -> None:
    assert marked_answer(text) == answer


NUMBERS = r"""
1,234.50 = 2469/2; $1,234,567 = 1234567; -$5 = -5; $-5 = -5; \$18.00 = 18; 50\% = 50; 3/4 = 3/4; 2 1/2 = 5/2
\dfrac{3}{4} = 3/4; -\frac{3}{4} = -3/4; \frac34 = 3/4; 2\frac{1}{2} = 5/2; 10{,}000 = 10000; 11,\! 111 = 11111
5 \text{ cm}^2 = 5; 5 years old. = 5; 5cm = 5; 90^\circ = 90; 1.5 \times 10^{3} = 1500; 1.5e3 = 1500; .5 = 1/2
18. = 18; $18$ = 18; 1 234 567 = 1234567; 25 cm² = 25; 3½ = 7/2
(-3) = -3
"""


def test_numbers_are_read_as_people_write_them() -> None:
    for line in NUMBERS.strip().replace("\n", "; ").split("; "):
        text, _, value = line.partition(" = ")
        assert to_number(text) == Fraction(value), text


@pytest.mark.parametrize(
    "text",
    [
        *("", "5 or 6", "5, 6", "5 6", "5 thousand", "5 million dollars", "two", "5x", "5 x", "1,23", "12,34,567"),
        *("5/0", "\\frac{1}{0}", "--5", "1e999", "48/2=24", "x=5", "5+1", "5!", "2^3", "nan", "inf", "1" * 101),
    ],
)
def test_anything_but_a_single_number_is_none(text: str) -> None:
    assert to_number(text) is None


def gsm8k_forms(gold: str) -> list[str]:
    value = to_number(gold)
    assert value is not None
    return [
        f"so she has {gold}\n#### {gold}",
        f"#### ${float(value):,.2f}",
        f"<reasoning>\n1 + 1\n</reasoning>\n<answer>\n{gold}\n</answer>",
        f"<answer>\\boxed{{{gold}}}</answer>",
        f"<answer>The answer is {gold} apples.</answer>",
        f"Therefore $\\boxed{{\\frac{{{value * 2}}}{{2}}}}$.",
        f"\\boxed{{\\mathbf{{{gold}}}}}",
        f"<answer>**{gold}**</answer>",
        f"\\boxed{{{value - 3} + 3 = {gold}}}",
        f"<answer>**Answer:** AB = {gold}</answer>",
        "\\boxed{" + f"{int(value):,}".replace(",", "\\,") + "}",
    ]


def gsm8k_misses(gold: str, rng: random.Random) -> Iterator[str]:
    """Completions whose last marked answer is another number, no number, or not marked."""
    value = to_number(gold)
    assert value is not None
    n = int(value)
    digits = list(str(n))
    place = rng.randrange(len(digits))
    digits[place] = rng.choice([d for d in "123456789" if d != digits[place]])
    yield f"#### {''.join(digits).replace('--', '-')}"
    yield from (f"#### {other}" for other in (n + 1, f"{n}.5", f"{n}00" if n else 3, -n or 4, f"{n} thousand"))
    yield from (f"\\boxed{{{n}\\text{{ {word}}}}}" for word in ("million", "tens", "below zero", "and a half", "to 1"))
    yield from (f"#### {n}{mark}" for mark in ("_7", ":1", "t", " xy", " 1/2", f" = {n + 1}", "\\,5"))
    yield from (f"#### {n + 1} = {n}", f"#### x^2 = {n}", f"#### x > {n}", f"**{n}** or **{n}**")
    yield from (f"#### {n} or {n}", f"#### {n} {n}", f"#### {n}+0", f"{n}", f"the answer is {n}", f"<answer>{n}")
    yield from (f"\\boxed{{{n}", f"#### {n}\n#### {n + 2}", f"\\boxed{{{n}}} \\boxed{{{n + 3}}}", "####", f"#### x{n}")


def test_gsm8k_accepts_every_gold_answer_in_every_form() -> None:
    for gold in GSM8K:
        assert all(is_number(form, gold) and accepts(form, gold) for form in gsm8k_forms(gold)), gold


def test_gsm8k_rejects_near_misses() -> None:
    rng = random.Random(0)
    tried = [(miss, gold, is_number(miss, gold)) for gold in GSM8K for miss in gsm8k_misses(gold, rng)]
    assert not [case for case in tried if case[2]] and len(tried) > 500


def math_forms(gold: str) -> list[str]:
    respelled = gold.replace("\\frac", "\\dfrac").replace("\\left", "").replace("\\right", "")
    return [
        f"\\boxed{{{gold}}}",
        f"<answer>{gold}</answer>",
        f"<reasoning>\nx\n</reasoning>\n<answer>\n\\boxed{{ {gold} }}\n</answer>",
        f"#### ${gold}$",
        f"Hence $\\boxed{{{respelled.replace(' ', '') if '{ ' not in gold else respelled}}}$.",
        f"<answer>The final answer is \\( {gold} \\).</answer>",
        f"<answer>**${gold}$**</answer>",
        f"\\boxed{{{{{gold}}}}}",
    ]


SWAPS = (("+", "-"), ("(", "["), (")", "]"), ("x", "y"), ("\\pi", "e"), ("\\sqrt", ""), ("sin", "cos"))


def math_misses(gold: str, rng: random.Random) -> Iterator[str]:
    """Wrong answers, one change away from the reference."""
    places = [i for i, character in enumerate(gold) if character.isdigit()]
    if places:
        i = rng.choice(places)
        yield gold[:i] + str((int(gold[i]) + rng.randint(1, 9)) % 10) + gold[i + 1 :]
        yield gold[:i] + "7" + gold[i:]
        yield gold + "+1"
        if gold != "0":
            yield gold[1:] if gold.startswith("-") else f"-{gold}"
    if "," not in gold:  # a list that names its elements twice is the same set
        yield f"{gold} or {gold}"
    yield from (f"{gold}\\text{{ {word}}}" for word in ("million", "tens", "below zero", "and a half"))
    yield from (f"{gold}_7", f"{gold}:1", f"{gold} = 1717", f"1717 = {gold}")
    yield from (f"{gold}, 1717", f"{gold} or 1717", f"\\{{{gold}, 1717\\}}")
    yield from (gold.replace(old, new, 1) for old, new in SWAPS if old in gold)


def test_math_accepts_every_gold_answer_in_every_form(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(math, "by_algebra", lambda *sides: False)
    for gold in MATH:
        for form in math_forms(gold):
            assert accepts(form, gold), (form, gold)


@pytest.mark.long
def test_math_rejects_near_misses() -> None:
    pytest.importorskip("math_verify")
    rng = random.Random(0)
    tried = [(miss, gold, accepts(f"\\boxed{{{miss}}}", gold)) for gold in MATH for miss in math_misses(gold, rng)]
    assert not [case for case in tried if case[2]] and len(tried) > 500


HUGE = [
    "",
    "x" * MEGABYTE,
    " " * MEGABYTE,
    "\n" * MEGABYTE,
    "9" * MEGABYTE,
    "<answer>" * (MEGABYTE // 8),
    "</answer>" * (MEGABYTE // 9),
    "\\boxed{" * (MEGABYTE // 7),
    "\\boxed{" * (MEGABYTE // 14) + "}" * MEGABYTE,
    "\\boxed " * (MEGABYTE // 7),
    "####" * (MEGABYTE // 4),
    f"<answer>{'9' * MEGABYTE}</answer>",
    f"<answer>{'(' * MEGABYTE}</answer>",
    f"<answer>{'a ' * 9000}</answer>",
    f"<answer>{' ' * 18000}</answer>",
    f"\\boxed{{{'1,' * 9000}}}",
    f"\\boxed{{{'(' * 200}}}",
    f"\\boxed{{{'-' * 300}}}",
]
GRADERS: list[tuple[Callable[..., list[float]], dict[str, Any]]] = [
    (math.math_accuracy, {"answer": ["5"]}),
    (math.number_accuracy, {"answer": ["5"]}),
    (math.boxed_accuracy, {"answer": ["5"]}),
    (choices.choice_accuracy, {"answer": ["A"], "options": [["x", "y"]]}),
    (countdown.countdown_accuracy, {"numbers": [[1, 2, 3]], "target": [6]}),
    (countdown.countdown_partial, {"numbers": [[1, 2, 3]], "target": [6]}),
    (sudoku.sudoku_accuracy, {"puzzle": ["0" * 16]}),
    (sudoku.sudoku_cells, {"puzzle": ["0" * 16], "solution": ["1234341221434321"]}),
    (formats.tag_format, {}),
    (formats.soft_format, {}),
    (formats.strict_format, {}),
    (formats.integer_answer, {}),
    (formats.reasoning_tag_format, {}),
    (formats.xml_count, {}),
]


@pytest.mark.parametrize(("grader", "columns"), GRADERS, ids=lambda x: getattr(x, "__name__", ""))
def test_empty_and_huge_completions_score_zero_quickly(grader: Callable[..., list[float]], columns: Any) -> None:
    for text in HUGE:
        started = time.process_time()
        assert grader([""], [text], **columns) == [0.0]
        assert time.process_time() - started < 1.0


PIECE_LINES = r"""
\boxed{ } { ( ) [ ] $ ** __ ` \text{ \text{a} 9 9, 1,000 {,} \, \,000 \! a A or and = x= < \le x<
\cup (1,2) \frac \frac1 _ _{1} ^ ^{ - + \ \\ & #### <answer> </answer> <reasoning> . / * 10**10**10 !
' % \circ million cm the answer option is : é ² 1if f( e9 \overline{A}
"""
PIECES = [*PIECE_LINES.split(), " ", "\n", "a ", "cm "]


@given(st.lists(st.sampled_from(PIECES), min_size=1, max_size=4), st.sampled_from([95, 199, 390, 990, 1990, 10**6]))
@settings(max_examples=25)
def test_no_repeated_text_takes_a_second(pieces: list[str], size: int) -> None:
    unit = "".join(pieces)
    text = unit * (size // len(unit))
    for grader, columns in GRADERS:
        for completion in (text, f"<answer>{text}</answer>", f"\\boxed{{{text}}}"):
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(math, "by_algebra", lambda *sides: False)
                started = time.process_time()
                grader([""], [completion], **columns)
            assert time.process_time() - started < 1.0


@pytest.mark.parametrize("text", ["1if", "9or", "0x", "1(2)", "1is 2"])
def test_odd_arithmetic_prints_no_warning(text: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert countdown.countdown_accuracy(None, [f"<answer>{text}</answer>"], [[1, 2]], [3]) == [0.0]


# fmt: off
GROWING = [
    "9^(9^9)", "(9^9)^(9^9)", "9^{9}!", "99!!", "((99)!)!", "9E99999999", "9^{99\\cdot 99}", "2^{x}^{99}", "9^9^9",
    "\\sqrt{9}^{\\sqrt{99^9}}", "9^9!", "9^{9^{9}}", "9**9**9", "10^{1000000000}", "100000!", "2^{3^{4^{5}}}",
    "{" * 150 + "}" * 150, "(" * 150,
]
# fmt: on


@pytest.mark.parametrize("answer", GROWING)
def test_what_grows_fast_or_nests_deep_is_wrong_without_algebra(monkeypatch: pytest.MonkeyPatch, answer: str) -> None:
    monkeypatch.setattr(algebra._CHILD, "call", lambda **sides: pytest.fail("reached computer algebra"))
    assert not equivalent(answer, "x+1")


def test_without_math_verify_an_answer_is_not_wrong_but_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    there = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *rest: None if name == "math_verify" else there(name, *rest)
    )
    assert equivalent("x+1", "x+1") and not equivalent("", "x+17")  # these need no algebra
    with pytest.raises(UserError, match="math-verify, which is not installed: pip install math-verify"):
        equivalent("17+x", "x+17")


@pytest.mark.long
def test_an_algebra_process_that_hangs_is_killed_and_replaced() -> None:
    pytest.importorskip("math_verify")
    assert equivalent("x+x", "2x")
    first = algebra._CHILD.process
    assert first is not None
    with pytest.raises(ChildFailed):
        algebra._CHILD.call(gold="x+1", answer="9^{9^{9^{9}}}", decimals=12)
    assert first.poll() is not None  # killed inside a C call
    assert equivalent("y+y", "2y")


TAGGED = "<reasoning>\n1 + 1\n= 2\n</reasoning>\n<answer>\n2\n</answer>"


@pytest.mark.parametrize(
    ("text", "values"),  # tag_format, xml_count, soft_format, strict_format, integer_answer
    [
        (TAGGED, (1.0, 0.5, 0.5, 0.5, 0.5)),
        (TAGGED + "\n", (1.0, 0.5, 0.5, 0.5, 0.5)),
        (TAGGED + "\nbye", (0.0, 0.497, 0.5, 0.0, 0.5)),
        ("<reasoning>a</reasoning><answer>b</answer>", (1.0, 0.0, 0.5, 0.0, 0.0)),
        ("so " + TAGGED, (0.0, 0.375, 0.0, 0.0, 0.5)),
        # The middle two tags share a line, so only the outer two count.
        (TAGGED + TAGGED, (0.0, 0.25, 0.0, 0.0, 0.0)),
        ("<answer>1</answer><reasoning>b</reasoning>", (0.0, 0.0, 0.0, 0.0, 0.5)),
        ("<reasoning></reasoning><answer> </answer>", (0.0, 0.0, 0.5, 0.0, 0.0)),
    ],
)
def test_format_rewards_by_hand(text: str, values: tuple[float, ...]) -> None:
    names = ("tag_format", "xml_count", "soft_format", "strict_format", "integer_answer")
    assert [getattr(formats, name)(None, [text])[0] for name in names] == pytest.approx(values)


def test_d1s_boxed_format_has_the_four_values_of_its_paper() -> None:
    texts = ["<answer>\\boxed{1}</answer>", "<answer>1</answer>", "\\boxed{1}", "1"]
    assert formats.boxed_tag_format(None, texts) == [1.0, 0.75, 0.5, 0.25]


CHOSEN = r"""
B|(B)|B.|B) a dog|B. A dog.|\text{B}|**B**|$B$|Option B|The answer is B|**B.** A dog|**(B)**|The correct answer is (B).
\mathbf{B}|answer: B) a dog
"""
NOT_CHOSEN = """
Option b|Option B or C|The answer is not B|**B** **A**|$B$ a cat|Optional B|Not option B|Option D|b|A or B|A B|D
B. a cat|a dog|
"""


@pytest.mark.parametrize(("answers", "letter"), [(CHOSEN, "B"), (NOT_CHOSEN, None)])
def test_a_choice_is_one_letter(answers: str, letter: str | None) -> None:
    for answer in answers.strip().replace("\n", "|").split("|"):
        batch = [[f"<answer>{answer}</answer>"] * 3, [*"ABC"], [["a cat", "a dog", "an owl"]] * 3]
        assert choices.choice_accuracy(None, *batch) == [float(right == letter) for right in "ABC"], answer


COUNTDOWN = {
    1.0: r"""
(30 + 93) - 100|30 + 93 - 100 = 23|93 - (100 - 30)|$30 + 93 - 100$|\left(30 + 93\right) - 100|23 = 30 + 93 - 100
**30 + 93 - 100**|\(30 + 93 - 100 = 23\)
""",
    0.1: "30 + 93 - 100 = 23 = 23|24 = 30 + 93 - 100|30 + 93 - 100 = 24|100 - 93 + 30",
    0.0: """
23 = 23|[30, 93, 100]|f(30, 93, 100)|30 + 93 - 100 * 1.5|30 + 93|23|30 + 93 - 100 + 0|30 + 93 - 100 - 100 + 100
93 % 30 ** 100|__import__('os').getpid()
""",
}


@pytest.mark.parametrize("value", COUNTDOWN)
def test_countdown_by_hand(value: float) -> None:
    columns: dict[str, Any] = {"numbers": [[30, 100, 93]], "target": [23]}
    for expression in COUNTDOWN[value].strip().replace("\n", "|").split("|"):
        completion = [f"<answer>{expression}</answer>"]
        assert countdown.countdown_partial(None, completion, **columns) == [value], expression
        assert countdown.countdown_accuracy(None, completion, **columns) == [float(value == 1.0)]


def test_sudoku_by_hand() -> None:
    puzzle, solution = "3102200002100320", "3142243142131324"
    columns: dict[str, Any] = {"puzzle": [puzzle], "solution": [solution]}

    def both(answer: str) -> tuple[float, float]:
        completion = [f"<answer>{answer}</answer>"]
        graders = (sudoku.sudoku_accuracy, sudoku.sudoku_cells)
        return tuple(grader(None, completion, **columns)[0] for grader in graders)

    assert both(solution) == (1.0, 1.0)
    assert both("3142 2431\n4213 1324") == (1.0, 1.0)
    assert both(puzzle) == (0.0, 0.0)
    assert both("3142243142131325")[0] == 0.0
    assert both(solution[:8] + "1" + solution[9:]) == (0.0, 7 / 8)
    assert both("1234341221434321")[0] == 0.0  # a valid grid, but not of this puzzle
    assert both(solution + "1") == (0.0, 0.0)
