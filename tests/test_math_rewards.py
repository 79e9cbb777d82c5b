"""Graders of reasoning answers: correct ones in many spellings, wrong ones that look similar, hostile text."""

from __future__ import annotations

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

from lfpo.rewards import choices, countdown, formats, math, sudoku, symbolic
from lfpo.rewards.answers import last_boxed, marked_answer
from lfpo.rewards.math import equivalent, math_accuracy, number_accuracy
from lfpo.rewards.numbers import to_number

OWN = Path(__file__).parent / "data"
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


@pytest.fixture
def without_math_verify(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(math, "symbolic_available", lambda: False)


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
        ("the answer is 7", None),
        ("\\boxed{7", None),
        ("<answer>7", None),
        ("7</answer>", None),
        ("", None),
    ],
)
def test_the_last_closed_mark_is_the_answer(text: str, answer: str | None) -> None:
    assert marked_answer(text) == answer


def test_a_box_of_a_reference_solution_is_found() -> None:
    for row in rows("math500/test.jsonl"):
        box = last_boxed(row["solution"])
        assert box is not None
        assert equivalent(box, row["answer"])


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1,234.50", Fraction(2469, 2)),
        ("$1,234,567", Fraction(1234567)),
        ("-$5", Fraction(-5)),
        ("$-5", Fraction(-5)),
        ("\\$18.00", Fraction(18)),
        ("50\\%", Fraction(50)),
        ("3/4", Fraction(3, 4)),
        ("2 1/2", Fraction(5, 2)),
        ("\\dfrac{3}{4}", Fraction(3, 4)),
        ("-\\frac{3}{4}", Fraction(-3, 4)),
        ("\\frac34", Fraction(3, 4)),
        ("2\\frac{1}{2}", Fraction(5, 2)),
        ("10{,}000", Fraction(10000)),
        ("11,\\! 111", Fraction(11111)),
        ("5 \\text{ cm}^2", Fraction(5)),
        ("5 years old.", Fraction(5)),
        ("5cm", Fraction(5)),
        ("90^\\circ", Fraction(90)),
        ("1.5 \\times 10^{3}", Fraction(1500)),
        ("1.5e3", Fraction(1500)),
        (".5", Fraction(1, 2)),
        ("18.", Fraction(18)),
        ("$18$", Fraction(18)),
    ],
)
def test_numbers_are_read_as_people_write_them(text: str, value: Fraction) -> None:
    assert to_number(text) == value


@pytest.mark.parametrize(
    "text",
    [
        *("", "5 or 6", "5, 6", "5 6", "5 thousand", "5 million dollars", "two", "5x", "5 x", "1,23", "12,34,567"),
        *("5/0", "\\frac{1}{0}", "--5", "1e999", "48/2=24", "x=5", "5+1", "5!", "2^3", "nan", "inf", "1" * 101),
    ],
)
def test_anything_but_a_single_number_is_none(text: str) -> None:
    assert to_number(text) is None


@given(st.integers(-(10**9), 10**9))
def test_spellings_of_integers(n: int) -> None:
    for text in (
        str(n),
        f"{n:,}",
        f"{n:,}.00",
        f"${n:,}",
        f"{n} apples",
        f"\\frac{{{2 * n}}}{{2}}",
        f"{n}\\text{{ km}}",
    ):
        assert to_number(text) == n
    assert to_number(f"{n}.01") != n


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
    yield from (
        f"#### {n + 1}",
        f"#### {n}.5",
        f"#### {n}00" if n else "#### 3",
        f"#### {-n or 4}",
        f"#### {n} thousand",
    )
    yield from (f"\\boxed{{{n}\\text{{ {word}}}}}" for word in ("million", "tens", "below zero", "and a half", "to 1"))
    yield from (f"#### {n}{mark}" for mark in ("_7", ":1", "t", " xy", " 1/2", f" = {n + 1}", "\\,5"))
    yield from (f"#### {n + 1} = {n}", f"#### x^2 = {n}", f"#### x > {n}", f"**{n}** or **{n}**")
    yield from (f"#### {n} or {n}", f"#### {n} {n}", f"#### {n}+0", f"{n}", f"the answer is {n}", f"<answer>{n}")
    yield from (f"\\boxed{{{n}", f"#### {n}\n#### {n + 2}", f"\\boxed{{{n}}} \\boxed{{{n + 3}}}", "####", f"#### x{n}")


def test_gsm8k_accepts_every_gold_answer_in_every_form() -> None:
    for gold in GSM8K:
        assert all(is_number(form, gold) and accepts(form, gold) for form in gsm8k_forms(gold)), gold


def test_gsm8k_rejects_near_misses() -> None:
    rng, tried = random.Random(0), 0
    for gold in GSM8K:
        for miss in gsm8k_misses(gold, rng):
            tried += 1
            assert not is_number(miss, gold), (miss, gold)
    assert tried > 500


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


def test_math_accepts_every_gold_answer_in_every_form(without_math_verify: None) -> None:
    for gold in MATH:
        for form in math_forms(gold):
            assert accepts(form, gold), (form, gold)


def test_math_rejects_near_misses() -> None:
    pytest.importorskip("math_verify")
    rng, tried = random.Random(0), 0
    for gold in MATH:
        for miss in math_misses(gold, rng):
            tried += 1
            assert not accepts(f"\\boxed{{{miss}}}", gold), (miss, gold)
    assert tried > 500


EQUAL = [
    ("\\frac{\\sqrt{2}}{2}", "\\frac{1}{\\sqrt2}"),
    ("x^2+2x+1", "(x+1)^2"),
    ("2\\sqrt{3}", "\\sqrt{12}"),
    ("\\frac{3\\pi}{4}", "\\frac{3}{4}\\pi"),
]


@pytest.mark.parametrize(("gold", "answer"), EQUAL)
def test_computer_algebra_compares_expressions(gold: str, answer: str) -> None:
    pytest.importorskip("math_verify")
    assert equivalent(answer, gold)
    assert equivalent(gold, answer)


@pytest.mark.parametrize(("gold", "answer"), EQUAL)
def test_without_math_verify_only_spelling_and_numbers_count(without_math_verify: None, gold: str, answer: str) -> None:
    assert not equivalent(answer, gold)
    assert equivalent(gold, gold)


@pytest.mark.parametrize(
    ("gold", "answer"),
    [
        *(("even", "neve"), ("5", "6=5"), ("2", "x^2=2"), ("(3,4)", "3,4"), ("(3,4)", "[3,4]"), ("[1,2)", "[1,2]")),
        *(
            ("17", "17 or 17"),
            ("17", "17, 17"),
            ("17", "\\{17, 18\\}"),
            ("x=5", "y=5"),
            ("52_8", "52_7"),
            ("5", "5x-x"),
        ),
        *(("\\frac{1}{3}", "0.333333"), ("\\pi", "3.14159"), ("\\pi", "3.141592654"), ("(1,2)", "(2,1)"), ("x", "y")),
        *(
            ("\\text{Evelyn}", "\\text{Carla}"),
            ("1,2", "1"),
            ("3", ""),
            ("3", "}{3"),
            ("3", "\\boxed{3"),
            ("\\infty", "9"),
        ),
    ],
)
def test_similar_answers_are_wrong(gold: str, answer: str) -> None:
    assert not equivalent(answer, gold)


@pytest.mark.parametrize(
    ("gold", "answer"),
    [
        *(
            ("x=5", "5"),
            ("5", "x = 5"),
            ("5", "f(x)=5"),
            ("52_8", "52_{8}"),
            ("\\text{(B)}", "B"),
            ("\\text{even}", "Even"),
            ("1,-2", "-2,1"),
        ),
        *(
            ("(3,\\frac{\\pi}{2})", "\\left( 3, \\dfrac{\\pi}{2} \\right)"),
            ("\\frac{1}{2}", "0.5"),
            ("(1, 0.5)", "(1,\\frac12)"),
        ),
    ],
)
def test_other_spellings_are_right(without_math_verify: None, gold: str, answer: str) -> None:
    assert equivalent(answer, gold)


# Words, marks and bases that would change the value 13. math-verify drops most of them.
NOT_THIRTEEN = [
    *(f"13\\text{{ {word}}}" for word in ("million", "thousand", "dozen", "tens", "hundredths", "below zero", "to 1")),
    *("13 billion", "13 below zero", "13 or more", "13 and a half", "13 minus one", "13 score", "13 out of twenty"),
    *("13\\text{ and a half}", "\\text{not }13", "\\text{at least }13", "13\\mbox{ percent of }20", "13\\mathrm{k}"),
    *("13_7", "13_{7}", "(13)_7", "{13}_7", "13\\text{ base seven}", "13:1", "1:13", "1 3", "1\\,3", "1\\text{ }3"),
    *(
        "13t",
        "13 t",
        "13c",
        "13 xy",
        "13ab",
        "13 x",
        "13'",
        "13?",
        "13\\ldots",
        "13 \\ldots 5",
        "13;2",
        "13\\approx 14",
    ),
    *("13 1/2", "13\\,500", "12 + 2 = 13", "13 = 14", "14 = 13", "x^2 = 13", "2x = 13", "x > 13", "x = 13 or x = 5"),
    *("**13** or **5**", "13,13", "13 or 13", "13 and", "13\\text{ negative}", "13 halves", "13\\text{ squared}"),
]
THIRTEEN = [
    *(
        "**13**",
        "**13**.",
        "$13$",
        "{13}",
        "\\mathbf{13}",
        "\\boldsymbol{13}",
        "\\textbf{13}",
        "\\(13\\)",
        "`13`",
        "$$13$$",
    ),
    *(
        "x = 13",
        "x=13.0",
        "AB = 13",
        "\\theta = 13",
        "f(3) = 13",
        "\\angle ABC = 13^\\circ",
        "\\text{Area} = 13",
        "x_1 = 13",
    ),
    *("10 + 3 = 13", "x = 10 + 3 = 13", "26 / 2 = 13", "\\frac{26}{2} = 6.5 \\times 2 = 13", "13 = 13"),
    *(
        "13 apples",
        "13\\text{ cm}^2",
        "13 square feet",
        "13\\text{ dollars per hour}",
        "13 km/h",
        "13 apples",
        "13\\text{ m}",
    ),
    *("The answer is 13", "**Answer:** 13", "The final answer is $13$.", "Thus, the answer is 13 apples."),
]


@pytest.mark.parametrize("answer", NOT_THIRTEEN)
def test_words_and_signs_that_change_the_value_are_not_dropped(answer: str) -> None:
    assert not equivalent(answer, "13")
    assert not math.same_number(answer, "13")


@pytest.mark.parametrize("answer", THIRTEEN)
def test_a_number_may_be_named_computed_bold_or_have_a_unit(answer: str) -> None:
    assert math.same_number(answer, "13")
    assert equivalent(answer, "13")


@pytest.mark.parametrize(
    ("gold", "right", "wrong"),
    [
        (
            "58,500",
            ["58\\,500", "58500", "58{,}500", "58,\\!500"],
            ["58\\,50", "58 500", "58\\,5000", "5\\,8500", "58,50"],
        ),
        ("58500", ["\\$58\\,500", "58\\,500 \\text{ dollars}"], ["58500\\text{ and a half}", "58.500", "585\\,00"]),
        (
            "540",
            ["538 + 2 = 540", "540 = 538 + 2", "x = 538 + 2 = 540"],
            ["538 + 3 = 540", "540 = 541", "538 + 2 = 541 - 2"],
        ),
        (
            "(5,\\infty)",
            ["x > 5", "5 < x", "t>5"],
            ["x \\ge 5", "x < 5", "x > 6", "5 > x", "x > 6 or x > 7", "[5,\\infty)"],
        ),
        (
            "[-2,7]",
            ["-2 \\le x \\le 7", "7 \\geq x \\geq -2", "x \\in [-2,7]"],
            ["-2 < x \\le 7", "-2 \\le x \\le 8", "-2 \\le x \\ge 7"],
        ),
        ("-80\\leq g(x)\\leq 82", ["[-80,82]", "-80 ≤ g(x) ≤ 82"], ["-80 \\le h(x) \\le 82", "(-80,82)", "[-80,83]"]),
        (
            "(2,4)",
            ["(a,b) = (2,4)", "(x, y) = (2, 4)"],
            ["(a,b) = (4,2)", "(a,b) = [2,4]", "a = 2, b = 4", "a,b = 2,4"],
        ),
        (
            "-2, 1",
            ["x = -2 \\text{ or } x = 1", "x = 1, -2", "1 and -2", "x=1, x=-2"],
            ["x = -2 \\text{ or } x = 2", "x = -2", "x = -2 or y = 1"],
        ),
        ("2, 3, \\text{ and } 4", ["2, 3, 4", "4, 3 and 2"], ["2, 3", "2, 3, 4, 5", "2 3 4", "234"]),
        (
            "(-\\infty,1)\\cup(3,\\infty)",
            [
                "(-\\infty,1) U (3,\\infty)",
                "(-∞, 1) \u222a (3, ∞)",
                "x < 1 \\text{ or } x > 3",
                "(3,\\infty) \\cup (-\\infty,1)",
            ],
            ["(-\\infty,1] U (3,\\infty)", "(-\\infty,1)", "x < 1 or y > 3", "(-\\infty,1), (3,\\infty)"],
        ),
        ("\\frac{13}{4}", ["3 1/4", "3\\frac{1}{4}", "13/4"], ["1 3/4", "13/4_5", "1\\frac{3}{4}"]),
        (
            "25\\pi",
            ["25\\pi\\text{ cm}^2", "25\\pi \\text{ square units}", "A = 25\\pi"],
            ["25\\pi\\text{ thousand}", "25\\pi t", "25\\pi_7", "25\\pi 2"],
        ),
        (
            "-\\frac{5}{3}",
            ["-\\frac{5}{3}.", "-\\frac53"],
            ["-\\frac{5}{3}.t", "-\\frac{5}{3}. + 1", "-\\frac{5}{3}. xy"],
        ),
        ("109,200,000", ["109200000"], ["109200000, 109200000", "109200000 or 109200000"]),
        ("2:3", ["2 : 3"], ["2", "\\frac{2}{3}", "3:2"]),
    ],
)
def test_answers_on_both_sides_of_the_line(gold: str, right: list[str], wrong: list[str]) -> None:
    for answer in (gold, *right):
        assert equivalent(answer, gold), answer
    for answer in wrong:
        assert not equivalent(answer, gold), answer


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
@settings(max_examples=60, deadline=None)
def test_no_repeated_text_takes_a_second(pieces: list[str], size: int) -> None:
    unit = "".join(pieces)
    text = unit * (size // len(unit))
    for grader, columns in GRADERS:
        for completion in (text, f"<answer>{text}</answer>", f"\\boxed{{{text}}}"):
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(math, "symbolic_available", lambda: False)
                started = time.process_time()
                grader([""], [completion], **columns)
            assert time.process_time() - started < 1.0


@pytest.mark.parametrize("text", ["1if", "9or", "0x", "1(2)", "1is 2"])
def test_odd_arithmetic_prints_no_warning(text: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert countdown.countdown_accuracy(None, [f"<answer>{text}</answer>"], [[1, 2]], [3]) == [0.0]


@pytest.mark.parametrize(
    "answer",
    [
        *(
            "9^(9^9)",
            "(9^9)^(9^9)",
            "9^{9}!",
            "99!!",
            "((99)!)!",
            "9E99999999",
            "9^{99\\cdot 99}",
            "2^{x}^{99}",
            "9^9^9",
        ),
        *("\\sqrt{9}^{\\sqrt{99^9}}", "9^9!"),
    ],
)
def test_powers_and_factorials_that_grow_fast_are_wrong_without_algebra(
    monkeypatch: pytest.MonkeyPatch, answer: str
) -> None:
    monkeypatch.setattr(math, "symbolically_equal", lambda gold, answer: pytest.fail("reached computer algebra"))
    monkeypatch.setattr(math, "symbolic_available", lambda: True)
    assert not equivalent(answer, "x+1")


@pytest.mark.parametrize(
    "answer", ["9^{9^{9}}", "9**9**9", "10^{1000000000}", "100000!", "2^{3^{4^{5}}}", "{" * 150 + "}" * 150, "(" * 150]
)
def test_huge_powers_and_deep_nesting_are_wrong_without_algebra(monkeypatch: pytest.MonkeyPatch, answer: str) -> None:
    monkeypatch.setattr(math, "symbolically_equal", lambda gold, answer: pytest.fail("reached computer algebra"))
    monkeypatch.setattr(math, "symbolic_available", lambda: True)
    assert not equivalent(answer, "x+1")


def test_an_algebra_process_that_hangs_is_killed_and_replaced() -> None:
    pytest.importorskip("math_verify")
    assert symbolic.symbolically_equal("x+x", "2x")
    first = symbolic._CHILD.process
    assert first is not None
    assert not symbolic.symbolically_equal("x+1", "9^{9^{9^{9}}}")
    assert first.poll() is not None  # killed inside a C call
    assert symbolic.symbolically_equal("y+y", "2y")


def test_conversational_completions_are_read_as_in_trl() -> None:
    message = [{"role": "assistant", "content": "#### 5"}]
    assert number_accuracy(None, [message, "#### 6"], ["5", "5"]) == [1.0, 0.0]


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
    functions = (
        formats.tag_format,
        formats.xml_count,
        formats.soft_format,
        formats.strict_format,
        formats.integer_answer,
    )
    got = [function(None, [text])[0] for function in functions]
    assert got == pytest.approx(values)


def test_d1s_boxed_format_has_the_four_values_of_its_paper() -> None:
    texts = ["<answer>\\boxed{1}</answer>", "<answer>1</answer>", "\\boxed{1}", "1"]
    assert formats.boxed_tag_format(None, texts) == [1.0, 0.75, 0.5, 0.25]


@pytest.mark.parametrize(
    ("answer", "letter"),
    [
        *(("B", "B"), ("(B)", "B"), ("B.", "B"), ("B) a dog", "B"), ("B. A dog.", "B"), ("\\text{B}", "B")),
        *(
            ("**B**", "B"),
            ("$B$", "B"),
            ("Option B", "B"),
            ("The answer is B", "B"),
            ("**B.** A dog", "B"),
            ("**(B)**", "B"),
        ),
        *(("The correct answer is (B).", "B"), ("\\mathbf{B}", "B"), ("answer: B) a dog", "B")),
        *(("Option b", None), ("Option B or C", None), ("The answer is not B", None), ("**B** **A**", None)),
        *(("$B$ a cat", None), ("Optional B", None), ("Not option B", None), ("Option D", None)),
        *(("b", None), ("A or B", None), ("A B", None), ("D", None), ("B. a cat", None), ("a dog", None), ("", None)),
    ],
)
def test_a_choice_is_one_letter(answer: str, letter: str | None) -> None:
    assert choices.chosen_letter(f"<answer>{answer}</answer>", ["a cat", "a dog", "an owl"]) == letter


@pytest.mark.parametrize(
    ("expression", "value"),
    [
        ("(30 + 93) - 100", 1.0),
        ("30 + 93 - 100 = 23", 1.0),
        ("93 - (100 - 30)", 1.0),
        ("$30 + 93 - 100$", 1.0),
        ("\\left(30 + 93\\right) - 100", 1.0),
        ("23 = 30 + 93 - 100", 1.0),
        ("**30 + 93 - 100**", 1.0),
        ("\\(30 + 93 - 100 = 23\\)", 1.0),
        ("30 + 93 - 100 = 23 = 23", 0.1),
        ("24 = 30 + 93 - 100", 0.1),
        ("23 = 23", 0.0),
        ("[30, 93, 100]", 0.0),
        ("f(30, 93, 100)", 0.0),
        ("30 + 93 - 100 * 1.5", 0.0),
        ("30 + 93 - 100 = 24", 0.1),
        ("100 - 93 + 30", 0.1),
        ("30 + 93", 0.0),
        ("23", 0.0),
        ("30 + 93 - 100 + 0", 0.0),
        ("30 + 93 - 100 - 100 + 100", 0.0),
        ("93 % 30 ** 100", 0.0),
        ("__import__('os').getpid()", 0.0),
    ],
)
def test_countdown_by_hand(expression: str, value: float) -> None:
    columns: dict[str, Any] = {"numbers": [[30, 100, 93]], "target": [23]}
    completion = [f"<answer>{expression}</answer>"]
    assert countdown.countdown_partial(None, completion, **columns) == [value]
    assert countdown.countdown_accuracy(None, completion, **columns) == [float(value == 1.0)]


def test_sudoku_by_hand() -> None:
    puzzle, solution = "3102200002100320", "3142243142131324"
    columns: dict[str, Any] = {"puzzle": [puzzle], "solution": [solution]}

    def both(answer: str) -> tuple[float, float]:
        completion = [f"<answer>{answer}</answer>"]
        return sudoku.sudoku_accuracy(None, completion, **columns)[0], sudoku.sudoku_cells(None, completion, **columns)[
            0
        ]

    assert both(solution) == (1.0, 1.0)
    assert both("3142 2431\n4213 1324") == (1.0, 1.0)
    assert both(puzzle) == (0.0, 0.0)
    assert both("3142243142131325")[0] == 0.0
    assert both(solution[:8] + "1" + solution[9:]) == (0.0, 7 / 8)
    assert both("1234341221434321")[0] == 0.0  # a valid grid, but not of this puzzle
    assert both(solution + "1") == (0.0, 0.0)
