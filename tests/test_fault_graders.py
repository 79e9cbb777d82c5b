"""Faults of the graders of mathematics, by kind: exact comparison of exact values, relative of others, and one
spelling for
answer and reference."""

import pytest

from lfpo.rewards.math import equivalent, same_number

RIGHT = [
    *(("10^6", "1,000,000"), ("1,000,000", "10^6"), ("2^{10}", "1,024"), ("10^{20}", "100,000,000,000,000,000,000")),
    *(("2^{-99}", r"\frac{1}{2^{99}}"), ("10^{-20}", "1e-20"), (r"2\sqrt{2}", r"\sqrt{8}"), ("1.5", r"1\frac{1}{2}")),
    *((r"10^{3}\text{ cm}", r"1,000\text{ cm}"), (r"13\%", "13"), ("13.", "13"), (r"\{1,2\}", r"\{2,1\}")),
    *(("i^2", "-1"), ("i^3", "-i"), ("i^4", "1"), ("(1+i)^2", "2i"), ("3+2i", "2i+3")),
    *((r"\sqrt{2}+\sqrt{3}", r"\sqrt{5+2\sqrt{6}}"), (r"\sin^2 x+\cos^2 x", "1"), ("(x+1)^2", "x^2+2x+1")),
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
]


@pytest.mark.parametrize(("answer", "gold"), RIGHT)
def test_equal_values_are_equal_in_any_spelling(answer: str, gold: str) -> None:
    assert equivalent(answer, gold)


@pytest.mark.parametrize(("answer", "gold"), WRONG)
def test_different_values_differ_however_close_to_zero(answer: str, gold: str) -> None:
    assert not equivalent(answer, gold)


@pytest.mark.parametrize("text", ["13...", "13..", r"13\%\%", "13%%"])
def test_a_number_has_one_full_stop_and_one_percent_sign_at_most(text: str) -> None:
    assert not same_number(text, "13")
