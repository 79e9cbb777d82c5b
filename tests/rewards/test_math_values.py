"""Values in mathematics: exact comparison of exact values, relative of others, and one spelling for answer and
reference."""

from decimal import Decimal
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from lfpo.rewards.math import boxed_accuracy, equivalent, math_accuracy, number_accuracy, same_number

RIGHT = [
    *(("10^6", "1,000,000"), ("1,000,000", "10^6"), ("2^{10}", "1,024"), ("10^{20}", "100,000,000,000,000,000,000")),
    *(("2^{-99}", r"\frac{1}{2^{99}}"), ("10^{-20}", "1e-20"), (r"2\sqrt{2}", r"\sqrt{8}"), ("1.5", r"1\frac{1}{2}")),
    *((r"10^{3}\text{ cm}", r"1,000\text{ cm}"), (r"13\%", "13"), ("13.", "13"), (r"\{1,2\}", r"\{2,1\}")),
    *(("i^2", "-1"), ("i^3", "-i"), ("i^4", "1"), ("(1+i)^2", "2i"), ("3+2i", "2i+3")),
    *((r"\sqrt{2}+\sqrt{3}", r"\sqrt{5+2\sqrt{6}}"), (r"\sin^2 x+\cos^2 x", "1"), ("(x+1)^2", "x^2+2x+1")),
    # Grouped thousands within brackets, also of intervals that inequalities make.
    *(("(1,000, 2)", "(10^3, 2)"), ("(10^3,2)", "(1,000, 2)"), ("(1,234)", "(1, 234)")),
    *(("(1,000, 2,000)", "(1000,2000)"), ("(-1,000.5, 2)", "(-1000.5,2)")),
    *((r"\{1,000, 2\}", r"\{2, 10^3\}"), ("[0, 1,000)", "[0,10^3)"), ("x > 1,000", r"(10^3,\infty)")),
    *((r"1 \le x \le 1,000", "[1, 10^3]"), ("(3,100)", "(3, 100)"), (r"\{300,1,200\}", r"\{1,200,300\}")),
    *((r"(\$1,000, \$2)", "(1000,2)"), (r"\left(10^3,\tfrac12\right)", "(1,000, 0.5)"), (r"\{5\}", "5")),
    # Exact spellings of a value, however large or small.
    *(
        ("10^{60}", "1e60"),
        ("0.1^{20}", "10^{-20}"),
        (r"\sqrt[3]{10^{-30}}", "10^{-10}"),
        ("2/7", r"0.\overline{285714}"),
    ),
    *((r"\pm 10^{-20}", "10^{-20}, -10^{-20}"), (r"[10^{-20}, \infty)", r"x \ge 1e-20"), ("y=10^{-20}x", "y=1e-20x")),
    *((r"6.02\times10^{23}", "602,000,000,000,000,000,000,000"), ("2^{100}", "1267650600228229401496703205376")),
    # The imaginary unit and a letter alone are values too.
    *(("2i/2", "i"), ("i", r"\frac{2i}{2}"), ("2x/2", "x")),
]
WRONG = [
    *((r"\frac{1}{2^{99}}", r"\frac{1}{2^{98}}"), ("10^{-20}", "10^{-21}"), ("1e-9", "2e-9"), ("0", "1e-12")),
    *(
        ("0", "10^{-20}"),
        ("10^{-20}", "0"),
        (r"2\times 10^{-30}", "10^{-30}"),
        ("e^{-50}", "0"),
        ("e^{-50}", "e^{-51}"),
    ),
    *((r"0.5\cdot 10^{-20}", "10^{-20}"), ("10^{20}+1", "10^{20}"), ("10^5", "1,000,000"), ("3.14159", r"\pi")),
    *(("10^{-20}x", "10^{-21}x"), ("10^{-20}i", "10^{-21}i"), ("x=10^{-20}", "x=10^{-21}"), ("i^2", "1")),
    *(("x+y=10^{-20}", "x+y=10^{-21}"), ("[0,10^{-20}]", "[0,10^{-21}]"), (r"\{10^{-20},1\}", r"\{10^{-21},1\}")),
    (r"\begin{pmatrix}10^{-20}\\1\end{pmatrix}", r"\begin{pmatrix}10^{-21}\\1\end{pmatrix}"),
    *(("13...", "13"), ("13..", "13"), (r"13\%\%", "13"), ("13%%", "13")),
    *(("(1,000, 2)", "(1,0,2)"), ("(1, 0, 2)", "(1,000, 2)"), ("(1,001, 2)", "(10^3, 2)"), (r"\{1,000\}", r"\{1,0\}")),
    *(("(1,234, 5)", "(1, 2345)"), ("[0, 1,000]", "[0, 1]"), ("(1,00,2)", "(100,2)"), ("1,0000", "10000")),
    *((r"1+\frac{1}{10^{15}}", "1"), ("0.99999999999999999", "1"), (r"\sin(10^{-20})", "10^{-20}"), ("2i", "i")),
    *(("2^{-200}", "2^{-201}"), (r"1 \pm 10^{-20}", r"1 \pm 10^{-21}"), (r"\sqrt{1+10^{-20}}", "1"), ("2x", "x")),
    ("602,000,000,000,000,000,000,001", r"6.02\times10^{23}"),
]


def test_equal_values_are_equal_in_any_spelling() -> None:
    assert not [pair for pair in RIGHT if not equivalent(*pair)]


def test_different_values_differ_however_close_to_zero() -> None:
    assert not [pair for pair in WRONG if equivalent(*pair)]


@pytest.mark.parametrize("text", ["13...", "13..", r"13\%\%", "13%%"])
def test_a_number_has_one_full_stop_and_one_percent_sign_at_most(text: str) -> None:
    assert not same_number(text, "13")


SOLUTION = "Half of 144 is 72.\n" + "So it is 72. " * 50 + "\n#### 72"  # as GSM8K's column has it


@pytest.mark.parametrize(
    "gold",
    [
        *(72, 72.0, Fraction(72), Decimal("72"), np.int64(72), np.float32(72), np.array(72)),
        *(
            "72",
            " 72\n",
            "$72$",
            "72.0",
            "The answer is 72.",
            r"\boxed{72}",
            "#### 72",
            "<answer>72</answer>",
            SOLUTION,
        ),
        *(["72"], ("71", 72), np.array(["72"]), [None, 72]),
    ],
)
def test_references_are_read_as_answers_are_and_may_be_numbers(gold: Any) -> None:
    for grade in (number_accuracy, math_accuracy, boxed_accuracy):
        assert grade(None, [r"so \boxed{72}", r"so \boxed{73}", "72"], [gold] * 3) == [1.0, 0.0, 0.0]


@pytest.mark.parametrize("gold", [None, float("nan"), "", " ", [], [None]])
def test_without_a_reference_nothing_is_judged(gold: Any) -> None:
    for grade in (number_accuracy, math_accuracy, boxed_accuracy):
        assert grade(None, [r"\boxed{72}"], [gold]) == [None]
