"""Which files of lfpo one iteration of `lfpo train demo` enters, in the order of entry: the table in CONTRIBUTING.md.

python -m dev.iteration_map            # print it
python -m dev.iteration_map --write    # put it into CONTRIBUTING.md
"""

import ast
import sys
import tempfile
from pathlib import Path
from types import FrameType
from typing import Any

import lfpo
from lfpo.cli.command_line import main
from lfpo.core.algorithm import Algorithm

PACKAGE = Path(lfpo.__file__).parent
PAGE = Path(__file__).parents[1] / "CONTRIBUTING.md"
BEGIN, END = "<!-- iteration: python -m dev.iteration_map --write -->\n", "<!-- end of iteration -->\n"


def stays(recipe: str = "demo") -> list[Path]:
    """The files that one iteration enters, as they are read by one who reads each function when it first runs: a stay
    is a run of such functions in one file."""
    files: list[Path] = []
    read: set[tuple[Path, int]] = set()

    def tracer(frame: FrameType, event: str, argument: Any) -> None:
        file = Path(frame.f_code.co_filename)
        function = file, frame.f_code.co_firstlineno
        if function not in read and file.is_relative_to(PACKAGE):
            read.add(function)
            if files[-1:] != [file]:
                files.append(file)

    iterate = Algorithm.iterate

    def traced(*arguments: Any) -> Any:
        Algorithm.iterate = iterate  # type: ignore[method-assign]
        sys.settrace(tracer)
        try:
            return iterate(*arguments)
        finally:
            sys.settrace(None)

    Algorithm.iterate = traced  # type: ignore[method-assign,assignment]
    with tempfile.TemporaryDirectory() as folder:
        code = main(["train", recipe, "--max_steps", "1", "--eval_steps", "0", "--output_dir", f"{folder}/run"])
    assert code == 0
    return files


def size(read: list[Path]) -> dict[str, int]:
    """The number of files that were entered, and of stays in one that was left before."""
    files = len(set(read))
    return {"files": files, "returns": len(read) - files}


def table(read: list[Path]) -> str:
    """One row a file, in the order of entry: its name, and the first sentence of its docstring."""
    rows = ["| file | what it is |\n| --- | --- |\n"]
    for file in dict.fromkeys(read):
        sentence = " ".join((ast.get_docstring(ast.parse(file.read_text())) or "").split("\n\n")[0].split())
        sentence = sentence.partition(". ")[0].rstrip(".").replace("|", "\\|")
        rows.append(f"| {file.relative_to(PACKAGE)} | {sentence} |\n")
    return "".join(rows)


def shown() -> str:
    """The table that stands in CONTRIBUTING.md."""
    return PAGE.read_text().partition(BEGIN)[2].partition(END)[0].strip() + "\n"


if __name__ == "__main__":
    read = stays()
    made = table(read)
    if "--write" in sys.argv:
        before, _, rest = PAGE.read_text().partition(BEGIN)
        PAGE.write_text(before + BEGIN + "\n" + made + "\n" + END + rest.partition(END)[2])
    else:
        print(made, size(read), sep="\n")
