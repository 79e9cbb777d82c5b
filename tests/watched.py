"""The states that a rollout's forwards saw."""

from lfpo.rollout.rows import ActiveRows, Drawing, Hook


class Watch(Hook):
    """Every state that a forward saw: row, clock, completion."""

    def __init__(self) -> None:
        self.seen: list[tuple[int, int, list[int]]] = []

    def __call__(self, active: ActiveRows, drawn: Drawing) -> None:
        live = drawn.alive
        columns = (active.row[live], active.clock[live], active.tokens[live])
        self.seen.extend(zip(*(column.tolist() for column in columns), strict=True))
