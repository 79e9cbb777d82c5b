"""Which rank is silent, which is behind, and which prints the reason. The test counts the seconds: nothing waits."""

import random
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import pytest
import torch
from torch._C._distributed_c10d import HashStore

from lfpo.base import distributed
from lfpo.base.heartbeat import Heartbeat, meet
from lfpo.config.errors import ProcessLost
from lfpo.core import collectives, rank_tensors


def hearts(world: int, timeout: float = 10.0) -> list[Heartbeat]:
    """The heartbeats of ranks that share a store and have all been read once."""
    store = HashStore()
    found = [Heartbeat(store, r, world) for r in range(world)]
    for _ in range(2):
        for heart in found:
            heart.exchange()
            heart.timeout = timeout
    return found


def pass_time(hearts: list[Heartbeat], seconds: int, silent: tuple[int, ...] = ()) -> list[str]:
    """Seconds in which all ranks beat except the silent ones; what each rank says at the end.

    A beat is read by the ranks below its own one second later, so the first of these seconds may not count as silence.
    """
    said = [""] * len(hearts)
    for _ in range(seconds):
        for heart in hearts:
            said[heart.rank] = heart.wait(1.0)
        for heart in hearts:
            if heart.rank not in silent:
                heart.exchange()
    return said


def test_a_silent_rank_is_named_once_its_time_is_over():
    three = hearts(3)
    assert pass_time(three, 9, silent=(1,)) == ["", "", ""]
    pass_time(three, 2)  # a beat starts the count again
    assert pass_time(three, 9, silent=(1,)) == ["", "", ""]
    first, _, third = pass_time(three, 2, silent=(1,))
    assert first.startswith("rank 1 gave no sign of life for 10 s (rank_timeout)") and first == third
    assert "--resume" in first and "< pass_time (test_heartbeat.py:" in first  # where it was seen last


def test_without_a_timeout_silence_is_not_judged():
    assert pass_time(hearts(2, timeout=0), 1000, silent=(1,)) == ["", ""]


def test_a_rank_that_never_wrote_a_beat_is_named():
    store = HashStore()
    first = Heartbeat(store, 0, 2)
    first.timeout = 10.0
    first.exchange()
    assert [first.wait(1.0) for _ in range(10)][8:] == ["", first.wait(0.0)]
    assert "rank 1 was on an unknown host in its start-up" in first.wait(0.0)


def test_a_store_that_does_not_answer_means_that_all_other_ranks_are_silent():
    (_, _, third) = hearts(3)
    said = [third.wait(1.0) for _ in range(10)]
    assert said[8] == "" and said[9].startswith("ranks 0, 1 gave no sign of life for 10 s")


@pytest.fixture
def no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time, "sleep", lambda seconds: None)


@pytest.mark.usefixtures("no_waiting")
def test_after_a_failed_collective_the_rank_without_beats_is_named():
    three = hearts(3)
    pass_time(three, 3, silent=(1,))
    assert three[0].explain().startswith("rank 1 ended, stopped or lost the network; rank 1 was on ")


@pytest.mark.usefixtures("no_waiting")
def test_after_a_failed_collective_a_living_rank_that_is_behind_is_named_with_its_place():
    three = hearts(3)
    for heart in three:
        heart.collectives = 4
    three[0].collectives = three[2].collectives = 5
    pass_time(three, 2)
    said = three[0].explain()
    assert said == three[2].explain()
    assert said.startswith("rank 1 did not join a collective (progress_timeout); rank 1 was on ")
    assert "< pass_time (test_heartbeat.py:" in said and "rank 2" not in said
    three[1].collectives = 5
    pass_time(three, 2)
    assert three[0].explain().startswith("ranks 0, 1, 2 did not join a collective")


def test_the_lowest_rank_left_speaks_and_local_rank_0_of_each_machine(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv("LOCAL_RANK", raising=False)
    three = hearts(3)
    pass_time(three, 10, silent=(0,))
    assert (three[1].speaks(), three[2].speaks()) == (True, False)
    monkeypatch.setenv("LOCAL_RANK", "0")
    assert three[2].speaks()


def test_the_threads_beat_and_end():
    store = HashStore()
    two, before = [Heartbeat(store, r, 2) for r in range(2)], threading.active_count()
    for heart in two:
        heart.interval = 0.01
        heart.start()
    until = time.monotonic() + 10
    while min(beat.number for heart in two for beat in heart.beats) < 3 and time.monotonic() < until:
        time.sleep(0.01)
    for heart in two:
        heart.close()
    assert all(beat.number >= 3 for heart in two for beat in heart.beats)
    assert threading.active_count() == before


def start_together(store: HashStore, world: int, seconds: float = 20.0, absent: tuple[int, ...] = ()) -> list[str]:
    """The name that ranks (here threads) meet under, or why they do not."""
    store.set_timeout(timedelta(seconds=seconds))

    def come(rank: int) -> str:
        time.sleep(random.Random(rank).random() * 0.1)
        try:
            return meet(store, rank, world, seconds)
        except (ProcessLost, RuntimeError) as error:
            return str(error)

    with ThreadPoolExecutor(world) as pool:
        return list(pool.map(come, [r for r in range(world) if r not in absent]))


def test_each_start_has_a_new_name_although_the_store_holds_earlier_ones():
    store, seen = HashStore(), set()
    for _ in range(5):
        found = start_together(store, 4)
        assert len(set(found)) == 1 and len(found[0]) == 32
        seen.add(found[0])
    assert len(seen) == 5


@pytest.mark.long
def test_ranks_that_do_not_start_are_named():
    store = HashStore()
    start_together(store, 4)  # ranks of an earlier start do not count
    assert start_together(store, 4, 1.0, absent=(2,))[0] == "rank 2 of 4 did not start in 1 s"
    assert start_together(store, 4, 1.0, absent=(1, 3))[0] == "ranks 1, 3 of 4 did not start in 1 s"
    assert len(start_together(store, 4, 1.0, absent=(0,))) == 3  # they give up too


def test_a_rank_that_waits_in_a_collective_on_the_gpu_names_those_it_waits_for():
    """Under NCCL the main thread cannot be interrupted there: the heartbeat's thread judges."""
    three = hearts(3, timeout=0)
    for heart in three:
        heart.patience, heart.collectives = 10.0, 4
    three[0].collectives = three[2].collectives = 5
    assert pass_time(three, 10) == ["", "", ""]
    first, second, third = pass_time(three, 2)
    for said in (first, third):
        assert said.startswith("rank 1 did not join a collective (progress_timeout); rank 1 was on ")
    assert second == ""  # it waits for nobody
    three[1].collectives = 5
    assert pass_time(three, 12) == ["", "", ""]
    three[0].collectives = 6
    pass_time(three, 8)
    three[0].collectives = 7  # it went on: the next collective has its own time
    assert pass_time(three, 8) == ["", "", ""]


@pytest.fixture
def heart(group: None, monkeypatch: pytest.MonkeyPatch) -> Heartbeat:
    """The heartbeat of a process group of this process alone, without threads."""
    heart = Heartbeat(HashStore(), 0, 1)
    monkeypatch.setattr(distributed, "_heart", heart)
    return heart


def test_every_collective_counts_and_limits_hold_while_watched(heart: Heartbeat):
    weight = torch.nn.Parameter(torch.ones(1))
    weight.grad = torch.ones(1)
    with distributed.watched(5.0, 7.0):
        assert heart.timeout == 5.0
        for collective, counts in (
            (distributed.barrier, 1),
            (lambda: collectives.gather(1), 1),
            (lambda: distributed.gather_to_first(1), 1),
            (lambda: collectives.sum_number(1.0), 1),
            (lambda: rank_tensors.sum_gradients([weight]), 2),  # first whether any rank has a gradient
            (lambda: rank_tensors.all_gather_tensor(torch.ones(2)), 1),
        ):
            before = heart.collectives
            collective()
            assert heart.collectives == before + counts
    assert heart.timeout == 0.0


def test_a_failed_collective_is_a_lost_rank_and_other_errors_stay(heart: Heartbeat, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(heart, "explain", lambda: "rank 1 ended")
    for text in (
        "[.../pair.cc:553] Connection closed by peer [127.0.0.1]:1234",
        "[.../unbound_buffer.cc:78] Timed out waiting 5000ms for recv operation to complete",
        "NCCL communicator was aborted on rank 0. Original reason for failure was: ...",
        "ncclRemoteError: A call failed possibly due to a network error or a remote process exiting prematurely.",
        "[Rank 0] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=3, OpType=ALLREDUCE) ran for 7000 ms",
    ):
        with pytest.raises(ProcessLost, match="rank 1 ended"), distributed.watched():
            raise RuntimeError(text)
    with pytest.raises(RuntimeError, match="of your own"), distributed.watched():
        raise RuntimeError("an error of your own")
