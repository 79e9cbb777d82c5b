"""Reward functions, and what else tests name by dotted path."""

import asyncio
import itertools
import os
import signal
import sys
import time

held: list[bytes] = []


def obey(do, value):
    """Does what it is told, in a child process."""
    if do == "c":
        sum(itertools.repeat(0))
    if do == "sleep":
        time.sleep(value)
    if do == "stop":
        os.kill(os.getpid(), signal.SIGSTOP)
    if do == "fork" and os.fork() == 0:  # a process that holds the pipe open and outlives its parent
        time.sleep(30)
        os._exit(0)
    if do == "fork":
        time.sleep(value)
    if do == "forge":  # what a program that the function starts may write: the answer
        answer = """b'\\0\\0\\0\\x0c{"value": 1}'"""
        forged = f"import os\nfor f in range(3, 20):\n try: os.write(f, {answer})\n except OSError: 0"
        os.spawnv(os.P_WAIT, sys.executable, [sys.executable, "-c", forged])
    if do == "exit":
        os.kill(os.getpid(), -value) if value < 0 else os._exit(value)
    if do == "hold":
        held.append(b"x" * value)
    return value


def raises(prompts, completions, **columns):
    raise ConnectionError("nobody there")


def cancelled(prompts, completions, **columns):
    raise asyncio.CancelledError("late")


def even_tokens(prompts, completions, completion_ids, **columns):
    """The share of even token ids: varies between rollouts, also for a random model."""
    return [sum(t % 2 == 0 for t in ids) / max(1, len(ids)) for ids in completion_ids]


def one_right(prompts, completions, **columns):
    """1 for a single rollout of rank 0, so that most prompts have no gradient."""
    return [float(i == 0 and os.environ.get("RANK", "0") == "0") for i in range(len(completions))]


def only_on_rank_0(prompts, completions, **columns):
    """Fails on every other rank."""
    if os.environ.get("RANK", "0") != "0":
        raise RuntimeError("no grader on this machine")
    return [float(sum(map(ord, text)) % 2) for text in completions]
