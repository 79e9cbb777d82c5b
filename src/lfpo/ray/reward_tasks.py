"""What runs in the Ray tasks of reward functions. No torch is loaded here, which many functions do not need: it takes
seconds and hundreds of MB in each process."""

import functools
import pickle

from lfpo.base.environment import versions
from lfpo.config.errors import UserError, last_line
from lfpo.config.json import Json
from lfpo.core.attempts import RewardFailed
from lfpo.core.reward_values import checked
from lfpo.rewards import RewardFunction, reward_name


@functools.cache
def _loaded(pickled: bytes) -> RewardFunction:
    """A function, unpickled once in a process."""
    return pickle.loads(pickled)


def load(*pickled: bytes) -> dict[str, str]:
    """Load functions; returns what is installed here."""
    for one in pickled:
        _loaded(one)
    return versions()


def call(pickled: bytes, arguments: Json) -> list[float | None]:
    """The rewards of a function."""
    function = _loaded(pickled)
    try:
        return checked(function(**arguments), reward_name(function), len(next(iter(arguments.values()))))
    except (UserError, RewardFailed):
        raise
    except (Exception, SystemExit) as error:  # user code may raise anything, also what cannot be pickled
        raise RewardFailed(last_line(error)) from None
