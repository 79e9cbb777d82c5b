"""The prompt and answer format of the benchmarks, the same in training and evaluation."""

INSTRUCTION = """{role}
Respond in the following format:
<reasoning>
Your reasoning here
</reasoning>
<answer>
{answer}
</answer>"""


def ask(role: str, answer: str, question: str) -> list[dict[str, str]]:
    """One user message: role, answer format (d1's tags) and question. The chat template is applied later."""
    return [{"role": "user", "content": f"{INSTRUCTION.format(role=role, answer=answer)}\n\n{question}"}]


def tagged(reasoning: str, answer: str) -> str:
    """A completion in the format that `ask` describes."""
    return f"<reasoning>\n{reasoning}\n</reasoning>\n<answer>\n{answer}\n</answer>"
