"""Faults of the sandbox: a failure that the judge's stand-in for an object caused is never 0. Honest programs by what
they return or are given, as suites such as MBPP+ try them; each passes in a plain script."""

import os
from typing import Any
from unittest import mock

import pytest

from lfpo.sandbox import Job, Limits, Sandbox, installed_libraries

pytestmark = pytest.mark.skipif(os.name != "posix", reason="needs a POSIX system")

GENERATOR = "def f():\n    x = yield 1\n    return x"
DATACLASS = (
    "from dataclasses import dataclass, field\n@dataclass\nclass P:\n    xs: list = field(default_factory=list)\n"
)
NUMBERS = "import numpy as np\ndef f(n):\n    return np.arange(n, dtype=np.int64)"
# Honest programs that pass in a plain script (the tests below check that): judged, so they pass here too.
HONEST = {
    "decimal": (
        "from decimal import Decimal\ndef f(x): return Decimal(x) / 4",
        "from decimal import Decimal\nassert f(1) == Decimal('0.25') and round(f(1), 1) == Decimal('0.2')",
    ),
    "counter": (
        "from collections import Counter\ndef f(s): return Counter(s)",
        "c = f('aab')\nassert c.most_common(1) == [('a', 2)] and c['z'] == 0 and c + c == {'a': 4, 'b': 2}",
    ),
    "ordered": (
        "from collections import OrderedDict\ndef f(): return OrderedDict(b=1, a=2)",
        "from collections import OrderedDict\nassert f() != OrderedDict(a=2, b=1) and f().popitem() == ('a', 2)",
    ),
    "bounded deque": (
        "from collections import deque\ndef f(x): return deque(x, maxlen=2)",
        "assert list(f('abc')) == ['b', 'c'] and f('abc').maxlen == 2",
    ),
    "lazy default": (
        "from collections import defaultdict\ndef f(): return defaultdict(lambda: 7)",
        "d = f()\nassert d['x'] == 7",
    ),
    "dtype": (NUMBERS, "import numpy as np\nassert f(3).dtype == np.int64 and np.float64 != f(3).dtype"),
    "numpy scalar": (
        "import numpy as np\ndef f(): return np.float32(1.5)",
        "import numpy as np\nassert isinstance(f(), np.float32) and f().item() == 1.5",
    ),
    "path": (
        "from pathlib import Path\ndef f(): return Path('/a/b.txt')",
        "from pathlib import Path\nassert f().suffix == '.txt' and f() / 'c' == Path('/a/b.txt/c')",
    ),
    "partial": ("from functools import partial\ndef f(): return partial(pow, 2)", "assert f()(3) == 8"),
    "what a generator returns": (
        GENERATOR,
        "g = f()\nnext(g)\ntry:\n    x = next(g)\nexcept StopIteration as e:\n    x = e\nassert x.value is None",
    ),
    "what a delegate returns": (
        "def f():\n    yield 1\n    return 2",
        "def h():\n    x = yield from f()\n    yield x\nassert list(h()) == [1, 2]",
    ),
    "context that ends an exception": (
        "import contextlib\ndef f(): return contextlib.suppress(ValueError)",
        "with f():\n    raise ValueError('x')",
    ),
    "documentation": ("def f():\n    'Doc.'", "assert f.__doc__ == 'Doc.' and f.__name__ == 'f'"),
    "several flags": (
        "import enum\nclass P(enum.IntFlag):\n    R = 4\n    W = 2\ndef f(n): return P(n)",
        "assert f(6) == 6 and f(6) & 2 and f(0) == 0",
    ),
    "class with an odd name": (
        "import enum\nE = enum.IntEnum('My colours', 'RED BLUE')\ndef f(): return E.BLUE",
        "assert f() == 2",
    ),
    "match of a subclass": (
        "import re\nclass S(str): pass\ndef f(): return re.match('a', S('ab'))",
        "assert f().group() == 'a'",
    ),
    "subclass that changes nothing": (
        "class L(list): pass\ndef f(): return L([1])",
        "assert f() == [1] and len(f()) == 1",
    ),
    "singletons": ("def f(x): return NotImplemented if x else ...", "assert f(1) is NotImplemented and f(0) is ..."),
    "own text of an exception": (
        "class E(ValueError):\n    def __str__(self): return 'bad'\ndef f(): raise E(1)",
        "try:\n    f()\nexcept ValueError as e:\n    assert str(e) == 'bad'\nelse:\n    assert 0",
    ),
    "dataclass that changes later": (
        DATACLASS + "p = P()\ndef f(k):\n    p.xs.append(k)\n    return [p]",
        "a = f(1)\nb = f(2)\nassert a[0].xs == [1, 2]",
    ),
    "tuple with a list that changes later": (
        "c = (0, [])\ndef f(k):\n    c[1].append(k)\n    return c",
        "a = f(1)\nb = f(2)\nassert a == (0, [1, 2])",
    ),
    "frame that changes later": (
        "import pandas as pd\nd = pd.DataFrame({'a': [0]})\ndef f(k):\n    d[k] = 1\n    return d",
        "a = f('x')\nb = f('y')\nassert list(a.columns) == ['a', 'x', 'y']",
    ),
}
# Honest programs whose result, or argument, only they know: not judged.
STOOD_IN = {
    "field called count": (
        "from collections import namedtuple\nP = namedtuple('P', 'name count')\ndef f(): return P('a', 3)",
        "assert f().count == 3",
    ),
    "renamed field": (
        "from collections import namedtuple\nP = namedtuple('P', 'a class', rename=True)\ndef f(): return P('a', 3)",
        "assert f()._1 == 3",
    ),
    "fields as a dict": (
        DATACLASS + "def f(): return P([1])",
        "import dataclasses\nassert dataclasses.asdict(f()) == {'xs': [1]}",
    ),
    "attributes": (DATACLASS + "def f(): return P([1])", "assert vars(f()) == f().__dict__ == {'xs': [1]}"),
    "name of a type": (GENERATOR, "assert type(f()).__name__ == f().__class__.__name__ == 'generator'"),
    "name of an exception": (
        "class E(ValueError): pass\ndef f(): raise E",
        "try:\n    f()\nexcept ValueError as e:\n    assert type(e).__name__ == 'E'",
    ),
    "attribute of an exception": (
        "class E(Exception):\n    def __init__(self): self.code = 3\ndef f(): raise E",
        "try:\n    f()\nexcept Exception as e:\n    assert e.code == 3",
    ),
    "cause of an exception": (
        "def f():\n    try: 1 / 0\n    except ZeroDivisionError as e: raise ValueError from e",
        "try:\n    f()\nexcept ValueError as e:\n    assert e.__cause__",
    ),
    "expected StopIteration": (
        "def f(): return next(iter([]))",
        "try:\n    f()\nexcept StopIteration:\n    pass\nelse:\n    assert 0",
    ),
    "equal instances": (
        "class P:\n    def __eq__(self, o): return True\n    def __hash__(self): return 1\ndef f(): return P()",
        "assert len({f(), f()}) == 1",
    ),
    "missing keys": (
        "class D(dict):\n    def __missing__(self, k): return 0\ndef f(): return D()",
        "assert f()['z'] == 0",
    ),
    "text of a number": (
        "class I(int):\n    def __str__(self): return 'x'\ndef f(): return I(3)",
        "assert str(f()) == 'x'",
    ),
    "argument with a method": (
        "def f(x): return x.shout()",
        "class S(str):\n    def shout(self): return 'A'\nassert f(S('a')) == 'A'",
    ),
    "argument that changes its base": (
        "def f(x): return x['k']",
        "class D(dict):\n    def __missing__(self, k): return 5\nassert f(D()) == 5",
    ),
    "open file as an argument": ("def f(p): return p.read()", "import io\nassert f(io.StringIO('ab')) == 'ab'"),
    "class as a result": ("def f(): return int", "assert f() is int"),
    "printed output": (
        "def f(): print('hi')",
        "import io, contextlib\nwith contextlib.redirect_stdout(io.StringIO()) as b:\n    f()\nassert b.getvalue()",
    ),
    "environment": (
        "import os\ndef f(): return os.environ['Q']",
        "import os\nos.environ['Q'] = '3'\nassert f() == '3'",
    ),
}
# Programs that are wrong, or try to get a verdict out of what stands in for their objects: 0, or not judged.
NOT_HONEST = {
    "swallowed assertion": (
        "class C:\n    def __enter__(self): return 1\n    def __exit__(self, *error): return True\ndef f(): return C()",
        "with f() as v:\n    assert v == 2",
    ),
    "wrong generator": ("def f():\n    yield 1\n    yield 3", "assert list(f()) == [1, 2]"),
    "StopIteration": ("def f(): raise StopIteration", "assert f() == 1"),
    "set's own method": ("def f(x): return set", "assert f(1).intersection({2, 3}) == {2, 3}"),
}


@pytest.mark.long
def test_honest_results_and_arguments_are_judged_or_have_no_verdict():
    sandbox = Sandbox(limits=Limits(seconds=60), workers=2, unsafe="root", libraries=installed_libraries())
    with mock.patch.dict(os.environ):
        for program, test in (HONEST | STOOD_IN).values():
            space: dict[str, Any] = {}
            exec(program, space)
            exec(test, space)
    jobs = {name: Job(program, "f", tests=[test]) for name, (program, test) in (HONEST | STOOD_IN | NOT_HONEST).items()}
    verdicts = dict(zip(jobs, sandbox.run(list(jobs.values())), strict=True))
    assert not {name: v for name, v in verdicts.items() if name in HONEST and not v.passed}
    assert not {name: v for name, v in verdicts.items() if name in STOOD_IN and not v.needs}
    assert not {name: v for name, v in verdicts.items() if name in NOT_HONEST and v.passed}
    assert not verdicts["wrong generator"].needs and not verdicts["StopIteration"].needs
