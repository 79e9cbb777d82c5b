"""The code tasks: a problem with hidden tests, and one fenced block with a program as the answer.

AceCode-87K (Zeng et al., arXiv 2502.01718; MIT): the LFPO paper's training set for code, about 16 tests a problem. The
questions name the function. It has no test split: the task tests on HumanEval, zero-shot.

HumanEval (Chen et al., arXiv 2107.03374; MIT): 164 functions to complete, each tested by a `check(candidate)`.
HumanEval+ (Liu et al., arXiv 2305.01210; Apache-2.0) has about 80 times as many tests. Both train on AceCode-87K, as
the LFPO paper does.

MBPP (Austin et al., arXiv 2108.07732; CC-BY-4.0): short problems with three assertions each; the full form. The prompt
shows the first assertion, which names the function, and hides the others, as EvalPlus does: with all three shown, a
program could simply look up the expected values. MBPP+ (of HumanEval+'s authors) has 378 corrected problems with about
35 times as many tests. It trains on MBPP's training rows, except those that are also in its own test split.
"""

import ast
import dataclasses
import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from lfpo.config.errors import UserError
from lfpo.core.scoring import Row
from lfpo.prompts.rows import Record
from lfpo.prompts.tasks.data_task import DataTask
from lfpo.prompts.tasks.records import HubSplit
from lfpo.rewards import RewardFunction
from lfpo.rewards.code import Grader, code_job, pass_rate, syntax_compliance
from lfpo.rewards.program import extract_code
from lfpo.sandbox import Limits

INSTRUCTION = (
    "You are an expert Python programmer. "
    "Answer with one block of code that holds the whole program:\n```python\n# your program\n```"
)
STRICT = Grader(
    limits=Limits(seconds=120, cpu_seconds=40, memory=4 * 2**30, disk=2**28, open_files=256),
    check_solutions=False,
    together=True,
)
"""For evaluation: nothing defends the rows that need one process from a program that cheats. Some suites take a correct
program 12 s or 2 GB. Rewards have lower limits, to save time."""


def code_row(
    task_id: str,
    problem: str,
    tests: Sequence[str],
    solution: str,
    *,
    entry_point: str = "",
    header: str = "",
    setup: str = "",
    together: bool = False,
    needs: str = "",
) -> Row:
    """A row of a code task. All code tasks have the same columns, so that a model can train on one and test on another.

    tests, setup, header, entry_point, together, needs: as in lfpo.rewards.code.Grader. solution: a correct program, or
    an empty string if the data set has none.
    """
    return {
        "prompt": [{"role": "user", "content": f"{INSTRUCTION}\n\n{problem.strip()}"}],
        "task_id": task_id,
        "problem": problem.strip(),
        "solution": solution,
        "tests": list(tests),
        "entry_point": entry_point,
        "header": header,
        "setup": setup,
        "together": together,
        "needs": needs,
    }


def solution(row: Row) -> str:
    """A correct completion. Raises UserError if the data set has no solution."""
    if not row["solution"]:
        raise UserError(f"{row['task_id']}: the data set has no solution to imitate")
    return f"```python\n{row['solution'].strip()}\n```"


@dataclass(frozen=True, kw_only=True, eq=False)
class CodeTask(DataTask):
    """A task with rewards for syntax and pass rate in training, and for passing all tests in evaluation."""

    accuracy: RewardFunction = STRICT.all_tests_pass
    formats: tuple[RewardFunction, ...] = ()
    solution_key: Callable[[Row], str] = operator.itemgetter("task_id")  # MBPP+ uses those of MBPP
    solution: Callable[[Row], str] = solution
    gen_length: int = 512

    @property
    def reward_functions(self) -> list[RewardFunction]:
        """The LFPO paper's sparse rewards for code."""
        return [syntax_compliance, pass_rate]

    def needs(self, row: Row) -> str:
        """Why the row cannot be judged: a library that is missing, or tests that need what the sandbox lacks; or ""."""
        return row["needs"] or dataclasses.replace(code_job("", row), together=True).needs

    def sample_record(self, row: Row, completion: str) -> dict[str, str]:
        """A line of the samples.jsonl that the scorers of EvalPlus and BigCodeBench read, with the program as judged.

        They take `solution` as a whole program; a field `completion` would be appended to the prompt.
        """
        return {"task_id": row["task_id"], "solution": code_job(completion, row).program}


def acecode_row(record: Record) -> Row:
    """From `id`, `question`, `test_cases` (assertions) and optionally `inferences`: models' programs and the shares of
    the tests that they pass. The best one is used as the solution."""
    programs = [(float(i["pass_rate"]), str(i["completion"])) for i in record.values.get("inferences") or ()]
    best = extract_code(max(programs, key=lambda program: program[0])[1]) if programs else ""
    return code_row(str(record["id"]), record.text("question"), record.texts("test_cases"), best)


def acecode_or(build_test: Callable[[Record], Row | None]) -> Callable[[Record], Row | None]:
    """A build function for a task that trains on AceCode and tests on the suite whose records build_test builds."""
    return lambda record: acecode_row(record) if "question" in record or "test_cases" in record else build_test(record)


def humaneval_row(record: Record) -> Row:
    """From `task_id`, `prompt` (the beginning of the program), `test`, `entry_point` and `canonical_solution`."""
    prompt, entry_point = record.text("prompt"), record.text("entry_point")
    return code_row(
        record.text("task_id"),
        f"Complete this function:\n```python\n{prompt.strip()}\n```",
        [f"{record.text('test')}\n\ncheck({entry_point})\n"],
        prompt + record.text("canonical_solution"),
        entry_point=entry_point,
        header=prompt,
    )


def mbpp_row(record: Record) -> Row:
    """From `task_id`, `text` (`prompt` in the sanitized form), `code`, `test_list`, and the code that the tests need,
    in `test_setup_code` or in the list `test_imports`."""
    setup = record["test_imports"] if "test_imports" in record else [record.values.get("test_setup_code") or ""]
    tests = record.texts("test_list")
    return _problem_row(record, tests, setup, tests[0])


def mbpp_plus_row(record: Record) -> Row:
    """From `task_id`, `prompt`, `code`, `test_list` (the prompt shows its first) and `test` (the graded suite)."""
    if "test" not in record and "text" in record:
        return mbpp_row(record)
    return _problem_row(record, [record.text("test")], [], record.texts("test_list")[0])


def _problem_row(record: Record, tests: list[str], setup: list[str], shown: str) -> Row:
    """A row that is scored by `tests` and shows one assertion in its prompt."""
    text, code = record.text("text" if "text" in record else "prompt").strip(), record.text("code")
    return code_row(
        f"Mbpp/{record.text('task_id')}",
        f"{text}\nThe program must pass tests such as this one:\n```python\n{shown.strip()}\n```",
        tests,
        code,
        entry_point=_called_function(shown, code),
        setup="\n".join(setup),
    )


def _called_function(assertion: str, code: str) -> str:
    """Name of the function in `code` that an assertion calls; it may shadow a built-in such as `sum`. Empty if none."""
    try:
        calls, program = ast.walk(ast.parse(assertion.strip())), ast.parse(code)
    except SyntaxError:
        return ""
    defined = {node.name for node in program.body if isinstance(node, ast.FunctionDef)}
    names = (call.func.id for call in calls if isinstance(call, ast.Call) and isinstance(call.func, ast.Name))
    return next((name for name in names if name in defined), "")


ACECODE_TRAIN = ("train", HubSplit("TIGER-Lab/AceCode-87K", "train"))
HUMANEVAL = CodeTask(
    name="humaneval",
    build=acecode_or(humaneval_row),
    hub=(ACECODE_TRAIN, ("test", HubSplit("openai/openai_humaneval", "test"))),
    stems=(("train", ("train",)), ("test", ("test", "HumanEval"))),
)
ACECODE = dataclasses.replace(HUMANEVAL, name="acecode")
HUMANEVAL_PLUS = CodeTask(
    name="humaneval_plus",
    build=HUMANEVAL.build,
    hub=(ACECODE_TRAIN, ("test", HubSplit("evalplus/humanevalplus", "test"))),
)
_MBPP = tuple((split, HubSplit("google-research-datasets/mbpp", split, ("full",))) for split in ("train", "test"))
MBPP = CodeTask(name="mbpp", build=mbpp_row, hub=_MBPP)
MBPP_PLUS = CodeTask(
    name="mbpp_plus", build=mbpp_plus_row, hub=(_MBPP[0], ("test", HubSplit("evalplus/mbppplus", "test")))
)
