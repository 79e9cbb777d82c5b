"""How benchmark prompts ask for their answer: one format for training and evaluation."""

from __future__ import annotations

INSTRUCTION = """{role}
Respond in the following format:
<reasoning>
Your reasoning here
</reasoning>
<answer>
{answer}
</answer>"""


def ask(role: str, answer: str, question: str) -> list[dict[str, str]]:
    """One user message: what to do, the format (d1's tags), the question. The model's chat template does the rest."""
    return [{"role": "user", "content": f"{INSTRUCTION.format(role=role, answer=answer)}\n\n{question}"}]


def tagged(reasoning: str, answer: str) -> str:
    """A completion in that format."""
    return f"<reasoning>\n{reasoning}\n</reasoning>\n<answer>\n{answer}\n</answer>"


def lettered(options: list[str]) -> str:
    """Options on lines of their own: `A. ...`."""
    return "\n".join(f"{letter(i)}. {option.strip()}" for i, option in enumerate(options))


def letter(index: int) -> str:
    return chr(ord("A") + index)
