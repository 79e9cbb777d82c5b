"""TextArena's games as environments: `lfpo train --environment textarena_game:TextArena ...` steps those of verifiers.

An environment of verifiers has a `run()` that asks for the model's turns. Where it asks by `interaction(task)` and
`turn(text)` and waits for nothing else, this adapter can step it; one whose agents run a harness with tools does not
fit. Rows have the columns `prompt`, `game` and `game_seed`. Tested with verifiers 0.4.0, textarena 0.7.4 and
`GuessTheNumber-v0`.
"""

from contextlib import nullcontext
from types import SimpleNamespace, coroutine

import verifiers.v1 as vf
from verifiers.v1.agent import Segment
from verifiers.v1.tasksets.textarena import TextArenaData, TextArenaEnv, TextArenaTask


@coroutine
def written_after(said):
    return (yield said)


class TextArena:
    def reset(self, row, seed):
        self.reward, self.trace = 0.0, SimpleNamespace(info={}, record_reward=self.earn)
        info = {"game": row["game"], "seed": row["game_seed"]}
        agents = SimpleNamespace(player=SimpleNamespace(interaction=lambda task: nullcontext(self)))
        self.run = TextArenaEnv.run(None, TextArenaTask(TextArenaData(prompt=row["prompt"], info=info)), agents)
        self.run.send(None)  # up to the first turn

    def earn(self, name, value, weight=1.0):
        self.reward += weight * value

    async def turn(self, said=None):
        text = await written_after(said)
        return Segment(messages=[vf.AssistantMessage(content=text)], root_reply=text)

    def step(self, text):
        try:
            return self.run.send(text), 0.0, False
        except StopIteration:  # run() has returned
            return "", self.reward, True
