"""The memory of a poller, while others put things in."""

from __future__ import annotations

from delayed_queue.heads import Heads

PERIOD = 5.0


def polled(heads: Heads, *found: int) -> None:
    heads.end_poll(heads.start_poll(PERIOD), list(found))


def test_the_first_poll_sweeps_and_the_next_is_bounded_by_what_it_found() -> None:
    heads = Heads()
    first = heads.start_poll(PERIOD)
    assert (first.bounded, first.heads) == (False, [])
    heads.end_poll(first, [7, 100, 3, 0, 50, 0])
    second = heads.start_poll(PERIOD)
    assert (second.bounded, second.heads) == (True, [7, 100, 3, 0, 50, 0])


def test_what_lands_behind_lowers_its_priority_only() -> None:
    heads = Heads()
    polled(heads, 7, 100, 3, 0, 50, 0)
    heads.lower(7, 40)
    heads.lower(0, 60)
    heads.lower(-3, 10)
    assert heads.start_poll(PERIOD).heads == [7, 40, 0, 0, 50, 0, -3, 10, 0]


def test_what_lands_during_a_poll_is_not_passed_over_by_what_it_found() -> None:
    heads = Heads()
    polled(heads, 0, 50, 0)
    start = heads.start_poll(PERIOD)
    heads.lower(0, 55)
    heads.lower(9, 1000)
    heads.end_poll(start, [0, 70, 0])
    assert heads.start_poll(PERIOD).heads == [9, 1000, 0, 0, 55, 0]


def test_what_lands_ahead_of_a_poll_does_not_hold_its_heads_back() -> None:
    heads = Heads()
    polled(heads, 0, 50, 0)
    start = heads.start_poll(PERIOD)
    heads.lower(0, 1_000_000)
    heads.end_poll(start, [0, 70, 0])
    assert heads.start_poll(PERIOD).heads == [0, 70, 0]


def test_a_batch_during_a_sweep_asks_for_another() -> None:
    heads = Heads()
    start = heads.start_poll(PERIOD)
    heads.forget()
    heads.end_poll(start, [0, 70, 0])
    assert not heads.start_poll(PERIOD).bounded


def test_a_poll_that_may_be_undone_leaves_the_heads_where_they_were() -> None:
    heads = Heads()
    polled(heads, 0, 50, 0)
    heads.end_poll(heads.start_poll(PERIOD), None)
    assert heads.start_poll(PERIOD).heads == [0, 50, 0]
