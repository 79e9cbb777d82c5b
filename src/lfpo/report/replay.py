"""One completion as the player and the table show it: its tokens, reveal steps, Sudoku grid or syntax colours."""

import re
from typing import Any

from lfpo.rewards.answers import prompt_text

MAX_COLOURED = 20_000
"""Characters of the longest completion whose code is coloured: Pygments takes 9 s for a million."""
# Pygments token types and the classes of page.css that colour them.
INK = {"Keyword": "k", "String": "s", "Comment": "c", "Number": "n", "Name.Function": "f", "Name.Builtin": "f"}


def playable(record: dict[str, Any], config: dict[str, Any]) -> dict[str, Any]:
    """What the player needs of a record of `rollouts/` or `eval/`.

    edits: for each edited position the tokens that it held, each as [step, text, confidence].
    Runs that did not keep token texts give the whole `completion` in place of `tokens`, `reveal` and `confidence`.
    """
    shown = {
        "prompt": prompt_text(record["prompt"]),
        "steps": record["scheduled_steps"],
        "nfe": record["nfe"],
    }
    if record.get("correct") is not None:
        shown["correct"] = record["correct"]
    if "tokens" not in record:
        return {**shown, "completion": record["completion"]}
    length = len(record["tokens"])
    shown |= {
        "tokens": record["tokens"],
        "reveal": record["reveal_step"][:length],
        "confidence": [round(c, 3) for c in record["confidence"][:length]],
    }
    held = {int(i): tokens for i, tokens in record.get("edits", {}).items() if int(i) < length}
    text = "".join(record["tokens"])
    if "sudoku" in str(config.get("task")) and (grid := sudoku_grid(shown["prompt"], text)):
        shown["grid"] = grid
        for i, tokens in held.items():  # a grid shows a digit from the step on that wrote it for the last time
            shown["reveal"][i], _, _, shown["confidence"][i] = tokens[-1]
        return shown
    if held:
        shown["edits"] = {i: [[step, piece, sure] for step, _, piece, sure in tokens] for i, tokens in held.items()}
    if ink := highlight(text):
        shown["ink"] = ink
    return shown


def table_row(record: dict[str, Any], config: dict[str, Any]) -> dict[str, Any]:
    """What the completions table needs of a rollout."""
    return {
        **playable(record, config),
        "completion": record["completion"],
        "rewards": record["rewards"],
        "reward": record["reward"],
        "r": round(record["r"], 4),
    }


def sudoku_grid(prompt: str, completion: str) -> dict[str, Any] | None:
    """The puzzle in a prompt, blanks as ".", and where the completion writes its grid; None without a complete grid.

    at: index of the grid's first character in the completion.
    """
    for cells in (16, 81):
        puzzles = re.findall(rf"(?<!\w)[0-9A-P_.]{{{cells}}}(?!\w)", prompt)
        grids = list(re.finditer(rf"(?<!\d)[1-9]{{{cells}}}(?!\d)", completion))
        if puzzles and grids:
            return {"puzzle": re.sub(r"[^1-9]", ".", puzzles[-1]), "at": grids[-1].start()}
    return None


def highlight(completion: str) -> list[list[Any]] | None:
    """Runs [class of page.css, number of characters] that cover a completion with Python code; None without code.

    None also for a completion longer than MAX_COLOURED. Code is a fenced block, or a completion that starts with def,
    class, import or from.
    """
    if len(completion) > MAX_COLOURED:
        return None
    fence = re.search(r"```(?:python|py)?[ \t]*\n(.*?)(?:```|\Z)", completion, re.DOTALL)
    if fence is None and not re.match(r"\s*(?:def|class|import|from) \w", completion):
        return None
    from pygments.lexers.python import PythonLexer

    start, code = (fence.start(1), fence.group(1)) if fence else (0, completion)
    runs: list[list[Any]] = [["", start]] if start else []
    # get_tokens would strip and normalise the code, and characters would move.
    for _, kind, value in PythonLexer().get_tokens_unprocessed(code):
        name = str(kind).removeprefix("Token.")
        ink = next((short for prefix, short in INK.items() if f"{prefix}." in f"{name.replace('Literal.', '')}."), "")
        if runs and runs[-1][0] == ink:
            runs[-1][1] += len(value)
        else:
            runs.append([ink, len(value)])
    return runs
