"""Environments that tests name by dotted path."""

import random


class Letters:
    """Each turn earns the share of the text's characters that have an even code, which varies for a random model too.
    Over after as many turns as the row says (2 without a column `turns`)."""

    def reset(self, row, seed):
        self.left, self.seed = row.get("turns", 2), seed

    def step(self, text):
        self.left -= 1
        reward = sum(ord(character) % 2 == 0 for character in text) / max(1, len(text))
        return f"<{random.Random(self.seed).randrange(10)}>", reward, self.left == 0


class Scripted:
    """The reply names the turn; 1 for the text "y", 1/4 for "h", and over with "x" or "y"."""

    def reset(self, row, seed):
        self.turn = 0

    def step(self, text):
        self.turn += 1
        return f"({self.turn})", {"y": 1.0, "h": 0.25}.get(text, 0.0), text in ("x", "y")


class Raises(Letters):
    def step(self, text):
        raise ConnectionError("nobody there")


class RaisesLater(Letters):
    """Raises for every text but the one that is tried at start."""

    def step(self, text):
        if text.startswith("a stand-in"):
            return super().step(text)
        raise ConnectionError("nobody there")


class Returns(Letters):
    """Returns what `value` says."""

    value: object = None

    def step(self, text):
        return self.value


class WrongForThree(Letters):
    """Returns nothing in episodes of rows with three turns."""

    def step(self, text):
        return None if self.left == 3 and not text.startswith("a stand-in") else super().step(text)


class Gym(Letters):
    def reset(self, row, seed):
        return "first observation"
