"""Word problems of one to three steps in plain English, for pretrained models. Completions are those of `words`.

No test problem has the numbers of a training problem, in any order: the split is decided by the numbers alone.
"""

import random
from dataclasses import dataclass

from lfpo.core.scoring import Row
from lfpo.prompts.tasks.task import Task
from lfpo.prompts.tasks.words import Step, apply, correct, misread, solution

# No value of a problem is above it. With 12, a pretrained model of 135 M parameters gave 12 for most sums above 9, in
# all of its samples. With 6 there are 136 sets of numbers in training, few enough to learn by heart; with 9, 499.
LARGEST = 9
# Begins each solution's key and so decides which numbers are test problems'. With this one every single computation of
# a test problem occurs in training, at least 0.4 times as often as without a test split.
KEY = "story "
NAMES = ("Anna", "Ben", "Carla", "David", "Emma", "Frank", "Grace", "Henry", "Ivy", "Jack", "Laura", "Peter")
THINGS = ("apples", "books", "coins", "eggs", "marbles", "pencils", "shells", "stamps", "stickers", "toys")
BAGS = ("bags", "boxes", "jars", "drawers", "baskets")
WHEN = ("Then", "Later", "After lunch,", "The next day,", "In the evening,", "On Monday,", "A week later,")


@dataclass(frozen=True)
class Setting:
    """Sentences of one kind of story. {n}: the number; {name}, {thing}: drawn once a problem."""

    opening: tuple[str, ...]
    gain: tuple[str, ...]
    loss: tuple[str, ...]
    question: tuple[str, ...]


SETTINGS = (
    Setting(
        (
            "{name} has {n} {thing}.",
            "There are {n} {thing} on {name}'s desk.",
            "{name} starts the day with {n} {thing}.",
        ),
        ("{name} buys {n} more", "{name} finds {n} more", "a friend gives {name} {n} more", "{name} wins {n}"),
        ("{name} loses {n}", "{name} gives {n} to a friend", "{name} sells {n}", "{n} of them break"),
        ("How many {thing} does {name} have now?", "How many {thing} are left?"),
    ),
    Setting(
        ("A bus leaves the station with {n} people.", "{n} people sit in a bus that {name} drives."),
        ("{n} people get on", "{n} more passengers board", "{n} children join them"),
        ("{n} people get off", "{n} passengers leave the bus", "{n} of them step out"),
        ("How many people are on the bus?", "How many people does {name} drive now?"),
    ),
    Setting(
        ("{name} has {n} dollars.", "There are {n} dollars in {name}'s wallet.", "{name} saved {n} dollars."),
        ("{name} earns {n} dollars", "an aunt sends {n} dollars", "{name} gets {n} dollars for some work"),
        ("{name} spends {n} dollars on lunch", "a ticket costs {name} {n} dollars", "{name} lends {n} dollars to Sam"),
        ("How many dollars does {name} have?", "How much money is left, in dollars?"),
    ),
    Setting(
        (
            "{n} ducks swim in a pond.",
            "A farmer called {name} keeps {n} ducks.",
            "{name} counts {n} ducks by the lake.",
        ),
        ("{n} more ducks arrive", "{n} ducklings hatch", "{name} brings {n} ducks from the market"),
        ("{n} of the ducks fly away", "{n} ducks swim off", "{name} sells {n} of the ducks"),
        ("How many ducks are there now?", "How many ducks remain?"),
    ),
    Setting(
        ("{name} baked {n} cookies.", "A jar holds {n} cookies.", "There are {n} cookies on a plate."),
        ("{name} bakes {n} more", "{name} adds {n} cookies", "grandmother brings {n} cookies"),
        ("{name} eats {n} of them", "the children eat {n} cookies", "{n} cookies are given to the neighbours"),
        ("How many cookies are there?", "How many cookies can {name} still eat?"),
    ),
    Setting(
        ("{n} cars stand in a parking lot.", "The garage of {name} has {n} cars in it.", "{n} cars wait at a light."),
        ("{n} more cars arrive", "{n} cars drive up", "{name} sees {n} other cars come"),
        ("{n} cars drive away", "{n} of the cars leave", "{n} drivers take their cars home"),
        ("How many cars are there now?", "How many cars does {name} count?"),
    ),
)
IN_BAGS = (
    "{name} has {bags} {bag} with {n} {thing} in each.",
    "{bags} {bag} hold {n} {thing} each, and all are {name}'s.",
)


def sample(rng: random.Random) -> Row:
    """One to three of: a number of bags of equal size, then changes. Columns `steps`: (value before, sign, amount), and
    `answer`. All values are 1 to LARGEST."""
    words = {"name": rng.choice(NAMES), "thing": rng.choice(THINGS), "bag": rng.choice(BAGS)}
    setting, steps = rng.choice(SETTINGS), list[tuple[int, str, int]]()
    if rng.random() < 0.25:
        setting, (bags, each) = (
            SETTINGS[0],
            rng.choice([(b, n) for b in (2, 3) for n in (2, 3) if b * n <= LARGEST]),
        )
        sentences, value = [rng.choice(IN_BAGS).format(bags=bags, n=each, **words)], bags * each
        steps.append((bags, "*", each))
    else:
        value = rng.randint(1, LARGEST)
        sentences = [rng.choice(setting.opening).format(n=value, **words)]
    for _ in range(rng.choice((1, 2)) if steps else rng.choice((1, 2, 3, 3))):
        possible = [(s, n) for s in "+-" for n in range(1, LARGEST) if 1 <= apply(value, s, n) <= LARGEST]
        sign = rng.choice(sorted({s for s, _ in possible}))
        amount = rng.choice([n for s, n in possible if s == sign])
        change = rng.choice(setting.gain if sign == "+" else setting.loss).format(n=amount, **words)
        when = rng.choice(WHEN)
        sentences.append(f"{when} {change}.")
        steps.append((value, sign, amount))
        value = apply(value, sign, amount)
    sentences.append(rng.choice(setting.question).format(**words))
    return {"prompt": " ".join(sentences) + "\n", "steps": steps, "answer": value}


def demonstrate(row: Row, rng: random.Random, right_share: float) -> str:
    """The steps and the answer. A wrong one misreads the last change: it has the opposite sign or, where that would
    leave 1 to LARGEST, is left out (unless it is the only step). Each computation by itself is right."""
    steps: list[Step] = [(value, sign, amount) for value, sign, amount in row["steps"]]
    if rng.random() >= right_share:
        wrong = misread(*steps.pop())
        if not steps or 1 <= apply(*wrong) <= LARGEST:
            steps.append(wrong)
    return solution(steps)


def solution_key(row: Row) -> str:
    """The problem's numbers in ascending order."""
    first = row["steps"][0][0]
    return KEY + ",".join(str(n) for n in sorted([first, *(amount for _, _, amount in row["steps"])]))


TASK = Task(
    name="stories",
    sample=sample,
    solution_key=solution_key,
    correct=correct,
    demonstrate=demonstrate,
    right_share=0.45,
    gen_length=26,
)
