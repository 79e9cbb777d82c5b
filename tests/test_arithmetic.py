import ast
import time
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lfpo.rewards.arithmetic import MAX_CHARS, constants, evaluate, parse


@pytest.mark.parametrize(
    ("source", "value"),
    [
        ("1+2*3", 7),
        ("(1+2)*3", 9),
        ("8/3", Fraction(8, 3)),
        ("8/3*3", 8),
        ("-7//2", -4),
        ("-7%3", 2),
        ("2**8", 256),
        ("0**0", 1),
        ("--5", 5),
        (" 4 \n", 4),
        ("0x10", 16),
    ],
)
def test_values_are_exact(source: str, value: int | Fraction) -> None:
    assert evaluate(parse(source)) == value


def test_names_have_the_given_values() -> None:
    assert evaluate(parse("x*x-y"), {"x": 5, "y": 3}) == 22


# Without spaces, which separate them here.
REFUSED = "1+ x y+1 1.5 1j True 'a' None +1 ~1 1<<40 1|2 1<2 [1] (1,2) x.real x() abs(-1) (a:=1) 1/0 1//0 1%0 2**-1"
REFUSED += " 2**(1/2) 2**9 9**9**9 9**9**9**9**9 99999**8 10**8*10**8 1/10**8/10**8 exec('1') 1;2 f'{1}'"
SPACED = ["", "   ", "1 2", "not 1", "1 if 1 else 2", "(lambda: 1)()", "[i for i in (1,)]", "x = 1", "import os"]
LONG = ["1" * MAX_CHARS, "1" * 1_000_000, "(" * 10_000 + "1" + ")" * 10_000, "(" * 95 + "1"]
LONG += ["-" * (MAX_CHARS - 1) + "x", "[" * (MAX_CHARS // 2) + "]" * (MAX_CHARS // 2)]
ODD = ["__import__('os').system('true')", "1\n2", "\0", "\ud800"]


@pytest.mark.parametrize("source", [*REFUSED.split(" "), *SPACED, *LONG, *ODD])
def test_everything_else_is_a_value_error_within_a_second(source: str) -> None:
    started = time.perf_counter()
    with pytest.raises(ValueError):
        evaluate(parse(source), {"z": 1})
    assert time.perf_counter() - started < 1


def test_deep_but_allowed_nesting_has_a_value() -> None:
    assert evaluate(parse("(" * 90 + "1" + ")" * 90)) == 1
    assert evaluate(parse("-" * (MAX_CHARS - 2) + "1")) == 1


def test_constants_are_the_integer_literals() -> None:
    assert sorted(constants(parse("3*(4+4)-x*1.5+True"))) == [3, 4, 4]


expressions = st.recursive(
    st.integers(0, 30).map(str),
    lambda inner: st.tuples(inner, st.sampled_from("+-*"), inner).map(lambda t: f"({t[0]}{t[1]}{t[2]})"),
    max_leaves=6,
)


@given(expressions)
@settings(max_examples=200, deadline=None, derandomize=True)
def test_agrees_with_python(source: str) -> None:
    assert evaluate(parse(source)) == eval(source)


@given(st.text(alphabet="0123456789+-*/%()x_.,'[]{}= \n#lambdif", max_size=40))
@settings(max_examples=400, deadline=None, derandomize=True)
def test_random_text_gives_a_fraction_or_a_value_error(source: str) -> None:
    try:
        assert isinstance(evaluate(parse(source), {"x": 2}), Fraction)
    except ValueError:
        return
    assert isinstance(ast.parse(source.strip(), mode="eval"), ast.Expression)
