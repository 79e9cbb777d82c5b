"""How long a run is: iterations and epochs, from the keys of a configuration and the number of rows."""

import math
from dataclasses import dataclass

from lfpo.config.errors import UserError

UNSET = -1  # of max_steps, as in transformers: it was not given


@dataclass(frozen=True)
class Length:
    """iterations: of the whole run. epochs: passes over the rows that it begins. rows: distinct training rows, 0 where
    prompts are made without end, and the whole run counts as one epoch. batch: rows that an iteration takes. last: the
    rows that all epochs take, where these decide the length."""

    iterations: int
    epochs: int
    rows: int
    batch: int
    last: float | None = None

    def total(self, done: int, taken: int) -> int:
        """Iterations of the whole run, of which those done took so many rows, in batches of another size."""
        if self.last is None:
            return self.iterations
        return done + max(0, math.ceil(round((self.last - taken) / self.batch, 6)))

    def passed(self, iterations: int, row_offset: int = 0) -> float:
        """Epochs that so many iterations go through. row_offset: rows taken beyond those of `batch` an iteration (below
        0: fewer), after a resume with another batch."""
        if not self.rows:
            return iterations / self.iterations
        return (iterations * self.batch + row_offset) / self.rows


def run_length(max_steps: int, num_train_epochs: float, *, rows: int, batch: int, default: int) -> Length:
    """The length of a run, as transformers counts it: max_steps where it is given, else num_train_epochs passes over
    the rows, else `default` iterations.

    rows, batch: see Length. Raises UserError for epochs of prompts that are made without end.
    """
    if max_steps != UNSET or not num_train_epochs:
        iterations = default if max_steps == UNSET else max_steps
        return Length(iterations, math.ceil(iterations * batch / rows) if rows else 1, rows, batch)
    if not rows:
        raise UserError("num_train_epochs: a task makes new prompts without end, which has no epochs; give max_steps")
    last = num_train_epochs * rows
    # Rounded first: 0.3 epochs of 10 rows are 3 iterations of one, although the float product is a little more.
    iterations = max(1, math.ceil(round(last / batch, 6)))
    return Length(iterations, math.ceil(num_train_epochs), rows, batch, last)


def in_words(length: Length, num_train_epochs: float) -> str:
    """The length in words: what decides it, and that num_train_epochs, as it was given, does not count."""
    text = f"{length.iterations:,} iterations"
    if length.last is not None:
        return f"{text}, {num_train_epochs:g} epochs of {length.rows:,} rows"
    ignored = f", as max_steps says; num_train_epochs {num_train_epochs:g} counts only where max_steps is -1"
    return text + ignored if num_train_epochs else text
