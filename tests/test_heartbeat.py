"""Who is silent, who does not come, and who tells of it. The clock is the test's own: no process, no waiting."""

from __future__ import annotations

import json
import os
import random
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import pytest
import torch
from torch import distributed as dist
from torch._C._distributed_c10d import HashStore

from lfpo.base import distributed, heartbeat
from lfpo.base.errors import ProcessLost
from lfpo.base.heartbeat import Beat, Heartbeat, Limits, names


def hearts(world: int, rank: float = 10.0, progress: float = 100.0) -> list[Heartbeat]:
    """Processes that share a store and have all been heard once."""
    store = HashStore()
    found = [Heartbeat(store, r, world, "node-0:29500") for r in range(world)]
    for heart in found:
        heart.hear()
        heart.limits = Limits(rank, progress)
        assert heart.judge(1.0) == ""
    return found


def pass_time(hearts: list[Heartbeat], seconds: int, silent: tuple[int, ...] = ()) -> list[str]:
    """Seconds go by in which all beat, but for the silent; what each says at the end."""
    said = [""] * len(hearts)
    for _ in range(seconds):
        living = [heart for heart in hearts if heart.rank not in silent]
        for heart in living:
            heart.say()
        for heart in living:
            heart.hear()
            said[heart.rank] = heart.judge(1.0)
    return said


def test_a_silent_process_is_named_once_its_time_is_over():
    three = hearts(3)
    assert pass_time(three, 9, silent=(1,)) == ["", "", ""]
    first, _, third = pass_time(three, 1, silent=(1,))
    assert first.startswith("process 1 gave no sign of life for 10 s (rank_timeout)") and first == third
    assert "--resume" in first and "test_heartbeat.py" in first  # where it was seen last


def test_a_sign_of_life_starts_the_count_again():
    two = hearts(2)
    pass_time(two, 9, silent=(1,))
    assert pass_time(two, 1) == ["", ""]
    assert pass_time(two, 9, silent=(1,))[0] == ""
    assert "process 1" in pass_time(two, 1, silent=(1,))[0]


def test_nothing_is_judged_while_nobody_watches_and_zero_is_forever():
    two = hearts(2)
    two[0].limits = None
    assert pass_time(two, 1000, silent=(1,))[0] == ""
    two = hearts(2, rank=0, progress=0)
    assert pass_time(two, 1000, silent=(1,))[0] == ""


def test_a_living_process_that_does_not_come_is_named_with_its_place():
    three = hearts(3)
    for heart in three:
        heart.exchanges = 4
    three[0].exchanges = three[2].exchanges = 5
    assert pass_time(three, 100) == ["", "", ""]  # the first of these seconds sees the counts change
    said = pass_time(three, 1)
    assert said[0].startswith("process 1 did not come to the next exchange between processes in 100 s (progress_timeou")
    assert len(set(said)) == 1 and "process 1 on " in said[0] and "process 2" not in said[0]
    three[1].exchanges = 5
    assert pass_time(three, 100) == ["", "", ""]


def test_where_all_came_equally_far_all_are_told_of():
    said = pass_time(hearts(2), 101)
    assert said[0].startswith("processes 0 and 1 did not come to")
    assert "process 0 on " in said[0] and "process 1 on " in said[0]


def test_a_store_that_does_not_answer_names_all_others(monkeypatch: pytest.MonkeyPatch):
    (_, second) = hearts(2)
    said = [second.judge(1.0) for _ in range(10)]
    assert said[8] == ""
    assert said[9].startswith(
        "process 0 cannot be reached: the store at node-0:29500 has not answered process 1 for 10 s (rank_timeout)"
    )


def test_the_reason_of_one_is_everybodys():
    three = hearts(3)
    three[2].verdict = "process 1 was eaten"
    three[2].beat()
    three[0].beat()
    assert three[0].judge(0.1) == "process 1 was eaten"


def test_the_first_that_is_left_speaks_and_the_first_of_each_machine(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv("LOCAL_RANK", raising=False)
    three = hearts(3)
    pass_time(three, 10, silent=(0,))
    assert (three[1].speaks(), three[2].speaks()) == (True, False)
    monkeypatch.setenv("LOCAL_RANK", "0")
    assert three[2].speaks()


def test_after_a_broken_connection_the_one_whose_beats_stopped_is_named(monkeypatch: pytest.MonkeyPatch):
    three = hearts(3)
    monkeypatch.setattr(time, "sleep", lambda seconds: pass_time(three, 1, silent=(1,)) and None)
    assert three[0].missing().startswith("process 1 ended before its work was done")
    assert three[0].verdict == three[0].missing()  # and so the others hear it
    assert three[2].missing() == three[0].verdict


def test_when_a_process_was_stopped_itself_it_blames_nobody(monkeypatch: pytest.MonkeyPatch):
    two = hearts(2)
    clock, looks = iter([0.0, 0.25, 5000.0, 5000.25]), iter([False, False, False, True])
    monkeypatch.setattr(time, "monotonic", lambda: next(clock))
    monkeypatch.setattr(two[0]._closed, "wait", lambda seconds: next(looks))
    monkeypatch.setattr(os, "_exit", lambda code: pytest.fail("it blamed the other"))
    two[0]._watch()
    assert 0 < two[0].silence[1] < 2


def test_beats_read_as_they_were_written_and_names_of_many():
    beat = Beat(3, 4, "node", "f (a.py:1)", 'a "reason"')
    assert Beat(**json.loads(json.dumps(beat.__dict__))) == beat
    assert names([1]) == "process 1" and names([0, 2]) == "processes 0 and 2"
    assert names(list(range(12))) == "processes 0, 1, 2, 3 and 8 more"


def test_thousands_of_processes_beat_less_often():
    assert Heartbeat(HashStore(), 0, 8).interval == heartbeat.BEAT
    assert Heartbeat(HashStore(), 0, 1024).interval == 16.0


def start_together(store: HashStore, world: int, seconds: float = 20.0, absent: tuple[int, ...] = ()) -> list[str]:
    """What processes (here threads) agree on, or why not."""

    def come(rank: int) -> str:
        time.sleep(random.Random(rank).random() * 0.1)
        try:
            return distributed.agree(store, rank, world, seconds)
        except ProcessLost as lost:
            return str(lost)

    with ThreadPoolExecutor(world) as pool:
        return list(pool.map(come, [r for r in range(world) if r not in absent]))


def test_each_start_has_a_name_of_its_own_though_the_store_remembers_others():
    store, seen = HashStore(), set()
    for _ in range(5):
        found = start_together(store, 4)
        assert len(set(found)) == 1 and len(found[0]) == 32
        seen.add(found[0])
    assert len(seen) == 5


def test_processes_that_do_not_start_are_named():
    store = HashStore()
    start_together(store, 4)  # those of an earlier start do not count
    found = start_together(store, 4, 1.0, absent=(2,))
    assert found == ["process 2 of 4 did not start in 1 s"] * 3
    assert start_together(store, 4, 1.0, absent=(0,)) == ["process 0 of 4 did not start in 1 s"] * 3
    assert start_together(store, 4, 1.0, absent=(1, 3))[0] == "processes 1 and 3 of 4 did not start in 1 s"


@pytest.fixture
def group() -> Iterator[Heartbeat]:
    """A process group of this process alone, whose heartbeat does not run."""
    store = HashStore()
    dist.init_process_group("gloo", store=store, rank=0, world_size=1, timeout=timedelta(seconds=10))
    distributed._heart = Heartbeat(store, 0, 1)
    yield distributed._heart
    distributed._heart = None
    dist.destroy_process_group()


def test_every_exchange_counts_and_limits_hold_while_watched(group: Heartbeat):
    weight = torch.nn.Parameter(torch.ones(1))
    weight.grad = torch.ones(1)
    with distributed.watched(5.0, 7.0):
        assert group.limits == Limits(5.0, 7.0)
        for exchange, counts in ((distributed.barrier, 1), (lambda: distributed.gather(1), 1)):
            before = group.exchanges
            exchange()
            assert group.exchanges == before + counts
        distributed.sum_number(1.0)
        distributed.sum_gradients([weight])
        assert group.exchanges == 5  # whether any has a gradient is asked first
    assert group.limits is None


def test_a_broken_connection_is_a_lost_process_and_other_errors_stay(group: Heartbeat, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(group, "missing", lambda: "process 1 ended")
    with pytest.raises(ProcessLost, match="process 1 ended"), distributed.watched():
        raise RuntimeError("[.../pair.cc:553] Connection closed by peer [127.0.0.1]:1234")
    with pytest.raises(RuntimeError, match="of your own"), distributed.watched():
        raise RuntimeError("an error of your own")
