"""The ticks of rules, checked against an oracle that walks through real time and looks at the clock on the wall."""

from __future__ import annotations

import hashlib
import pickle
import re
import subprocess
import sys
import threading
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from datetime import UTC, datetime, time, timedelta, timezone
from functools import lru_cache
from itertools import islice, pairwise
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from delayed_queue.cron import CronDailySchedule, Crontab, Every, Rule, parse_rule
from delayed_queue.cron.reading import fields_of
from delayed_queue.cron.zones import instants_after
from delayed_queue.errors import InvalidInput

MINUTE = timedelta(minutes=1)
NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)

# The first instant after each change, in UTC.
CHANGES = {
    "Bucharest, an hour skipped": ("Europe/Bucharest", datetime(2026, 3, 29, 1, tzinfo=UTC)),
    "Bucharest, an hour repeated": ("Europe/Bucharest", datetime(2026, 10, 25, 1, tzinfo=UTC)),
    "New York, an hour skipped": ("America/New_York", datetime(2026, 3, 8, 7, tzinfo=UTC)),
    "New York, an hour repeated": ("America/New_York", datetime(2026, 11, 1, 6, tzinfo=UTC)),
    "Lord Howe, half an hour skipped": ("Australia/Lord_Howe", datetime(2026, 10, 3, 15, 30, tzinfo=UTC)),
    "Lord Howe, half an hour repeated": ("Australia/Lord_Howe", datetime(2026, 4, 4, 15, tzinfo=UTC)),
    "Casablanca, Ramadan begins": ("Africa/Casablanca", datetime(2026, 2, 15, 2, tzinfo=UTC)),
    "Casablanca, Ramadan ends": ("Africa/Casablanca", datetime(2026, 3, 22, 2, tzinfo=UTC)),
    "Apia, a day skipped": ("Pacific/Apia", datetime(2011, 12, 30, 10, tzinfo=UTC)),
    "Havana, midnight skipped": ("America/Havana", datetime(2026, 3, 8, 5, tzinfo=UTC)),
    "Havana, midnight repeated": ("America/Havana", datetime(2026, 11, 1, 5, tzinfo=UTC)),
    "Kolkata, where nothing changes": ("Asia/Kolkata", datetime(2026, 3, 29, 1, tzinfo=UTC)),
}
EXPRESSIONS = [
    "* * * * *",
    "*/5 * * * *",
    "7-59/20 * * * *",
    "0 * * * *",
    "30 * * * *",
    "45 1,2 * * *",
    "15,45 0-3 * * *",
    "0 2 * * *",
    "30 2 * * *",
    "0 3 * * *",
    "30 3 * * *",
    "0 0 * * *",
    "30 0 * * sun",
    "30 2 29 mar *",
    "15 2 1 * sun",
    "20 */2 * * 0,6",
    "59 23 * * mon-fri",
]


class Oracle:
    """Walks through real time in steps, and applies the policy to what the local clock shows at each.

    It knows neither croniter nor the arithmetic of offsets: what has been shown before is repeated, and what lies
    between two steps that follow each other is skipped.
    """

    def __init__(self, zone: str, start: datetime, end: datetime, step: timedelta = MINUTE) -> None:
        self.shown: list[tuple[datetime, list[datetime]]] = []  # instants, and the local times that run then
        seen: set[datetime] = set()
        instant, before = start, start.astimezone(ZoneInfo(zone)).replace(tzinfo=None, fold=0) - step
        while instant < end:
            local = instant.astimezone(ZoneInfo(zone)).replace(tzinfo=None, fold=0)
            run = []
            skipped = before + step
            while skipped < local:
                run.append(skipped)
                skipped += step
            if local not in seen:
                run.append(local)
            seen.update(run)
            self.shown.append((instant, run))
            instant, before = instant + step, local

    def ticks(self, matches: Callable[[datetime], bool]) -> list[datetime]:
        return [instant for instant, run in self.shown if any(map(matches, run))]


def matcher(expression: str) -> Callable[[datetime], bool]:
    """A crontab expression of stars, numbers, names, lists, ranges and steps, read in the plainest way."""
    names = {"sun": 0, "mon": 1, "tue": 2, "wed": 3, "thu": 4, "fri": 5, "sat": 6, "mar": 3, "oct": 10}
    limits = [(0, 59), (0, 23), (1, 31), (1, 12), (0, 6), (0, 59)]

    def number(text: str) -> int:
        return names[text] if text in names else int(text)

    def values(field: str, low: int, high: int) -> set[int]:
        found: set[int] = set()
        for item in field.split(","):
            base, _, step = item.partition("/")
            first, _, last = base.partition("-")
            if base == "*":
                found |= set(range(low, high + 1, int(step or 1)))
            else:
                found |= set(range(number(first), number(last or first) + 1, int(step or 1)))
        return found

    fields = expression.split()
    minute, hour, day, month, weekday, *second = (
        values(field, *limit) for field, limit in zip(fields, limits, strict=False)
    )
    both_days = fields[2] != "*" and fields[4] != "*"

    def matches(local: datetime) -> bool:
        if local.minute not in minute or local.hour not in hour or local.second not in (second[0] if second else {0}):
            return False
        by_date, by_week = local.day in day, local.isoweekday() % 7 in weekday
        return local.month in month and (by_date or by_week if both_days else by_date and by_week)

    return matches


@lru_cache
def oracle_around(change: str) -> Oracle:
    zone, moment = CHANGES[change]
    return Oracle(zone, moment - timedelta(hours=50), moment + timedelta(hours=50))


def ticks_until(rule: Rule, start: datetime, end: datetime) -> list[datetime]:
    found = []
    for tick in rule.ticks(start):
        if tick >= end:
            break
        found.append(tick)
    return found


def words(text: str) -> str:
    """A pattern of these very words, with anything in place of an ellipsis."""
    return ".*".join(map(re.escape, text.split("…")))


# Real changes, table by table


@pytest.mark.parametrize("change", CHANGES)
def test_the_clocks_are_changed_when_the_table_says(change: str) -> None:
    zone, moment = CHANGES[change]
    before, after = (at.astimezone(ZoneInfo(zone)).utcoffset() for at in (moment - timedelta(microseconds=1), moment))
    assert before is not None
    assert after is not None
    assert ("skipped" in change or "ends" in change) == (before < after)
    assert ("repeated" in change or "begins" in change) == (before > after)


@pytest.mark.parametrize("expression", EXPRESSIONS)
@pytest.mark.parametrize("change", CHANGES)
def test_a_crontab_ticks_when_the_oracle_says(change: str, expression: str) -> None:
    zone, moment = CHANGES[change]
    start, end = moment - timedelta(hours=25), moment + timedelta(hours=50)
    rule, expected = Crontab(expression, zone), oracle_around(change).ticks(matcher(expression))
    assert ticks_until(rule, start, end) == [tick for tick in expected if tick > start]
    # From every quarter of an hour near the change, and from a hair before and after it, the answer is the same.
    near = [moment + timedelta(minutes=15 * n) for n in range(-12, 13)]
    for asked in near + [at + hair for at in near for hair in (timedelta(microseconds=-1), timedelta(seconds=31))]:
        later = bisect_right(expected, asked)
        found = rule.ticks_after(asked, 3)
        known = expected[later : later + 3]
        assert found[: len(known)] == known, asked


@pytest.mark.parametrize("change", CHANGES)
def test_a_daily_schedule_ticks_when_the_oracle_says(change: str) -> None:
    zone, moment = CHANGES[change]
    hours = [time(18), time(0), time(2, 30), time(2), time(2, 10), time(1, 45), time(3)]
    start, end = moment - timedelta(hours=25), moment + timedelta(hours=50)
    expected = oracle_around(change).ticks(lambda local: local.time() in hours)
    rule = CronDailySchedule(zone, hours)
    assert ticks_until(rule, start, end) == [tick for tick in expected if tick > start]
    for asked in [moment + timedelta(minutes=15 * n) for n in range(-12, 13)]:
        assert rule.ticks_after(asked, 2) == [tick for tick in expected if tick > asked][:2]


@pytest.mark.parametrize("change", ["Lord Howe, half an hour skipped", "Lord Howe, half an hour repeated"])
@pytest.mark.parametrize("expression", ["* * * * * */20", "29 2 * * * 59", "* 1,2 * * * 7,8"])
def test_a_crontab_with_seconds_ticks_when_the_oracle_says(change: str, expression: str) -> None:
    zone, moment = CHANGES[change]
    start, end = moment - timedelta(hours=1), moment + timedelta(hours=1)
    expected = Oracle(zone, start, end, timedelta(seconds=1)).ticks(matcher(expression))
    assert ticks_until(Crontab(expression, zone), start, end) == [tick for tick in expected if tick > start]


def local_ticks(rule: Crontab | CronDailySchedule, start: datetime, count: int) -> list[str]:
    return [f"{tick.astimezone(ZoneInfo(rule.zone)):%d %H:%M %z}" for tick in rule.ticks_after(start, count)]


def test_a_skipped_time_runs_once_when_the_gap_ends() -> None:
    rule = Crontab("30 3 * * *", "Europe/Bucharest")
    assert local_ticks(rule, datetime(2026, 3, 28, tzinfo=UTC), 3) == [
        "28 03:30 +0200",
        "29 04:00 +0300",
        "30 03:30 +0300",
    ]


def test_several_skipped_times_and_the_one_at_the_end_of_the_gap_are_one_tick() -> None:
    rule = Crontab("*/20 * * * *", "Europe/Bucharest")
    before = datetime(2026, 3, 29, 0, 30, tzinfo=UTC)
    assert local_ticks(rule, before, 3) == ["29 02:40 +0200", "29 04:00 +0300", "29 04:20 +0300"]


def test_a_repeated_time_runs_once_the_first_time() -> None:
    rule = Crontab("30 3 * * *", "Europe/Bucharest")
    before = datetime(2026, 10, 24, 12, tzinfo=UTC)
    assert local_ticks(rule, before, 2) == ["25 03:30 +0300", "26 03:30 +0200"]


def test_nothing_ticks_while_an_hour_is_repeated() -> None:
    rule = Crontab("*/30 * * * *", "Europe/Bucharest")
    before = datetime(2026, 10, 25, 0, 10, tzinfo=UTC)
    assert local_ticks(rule, before, 2) == ["25 03:30 +0300", "25 04:00 +0200"]
    for minutes in range(25, 110):
        assert local_ticks(rule, before + MINUTE * minutes, 1) == ["25 04:00 +0200"]


def test_a_day_that_a_zone_left_out_runs_once_at_its_end() -> None:
    rule = CronDailySchedule("Pacific/Apia", [time(12), time(18)])
    before = datetime(2011, 12, 30, 5, tzinfo=UTC)
    assert local_ticks(rule, before, 3) == ["31 00:00 +1400", "31 12:00 +1400", "31 18:00 +1400"]


def test_every_is_real_time() -> None:
    before = datetime(2026, 3, 29, 0, 10, tzinfo=ZoneInfo("Europe/Bucharest"))
    assert {later - tick for tick, later in pairwise(Every(5400).ticks_after(before, 20))} == {timedelta(minutes=90)}


def test_every_ticks_at_whole_multiples_of_its_period_since_1970() -> None:
    assert Every(timedelta(hours=1)).ticks_after(NOON, 2) == [NOON + timedelta(hours=1), NOON + timedelta(hours=2)]
    before_1970 = datetime(1969, 12, 31, 23, 59, 59, 999_999, tzinfo=UTC)
    assert Every(7).ticks_after(before_1970, 2) == [
        datetime(1970, 1, 1, tzinfo=UTC),
        datetime(1970, 1, 1, 0, 0, 7, tzinfo=UTC),
    ]


@pytest.mark.parametrize(
    "zone", ["Europe/Bucharest", "America/New_York", "Africa/Monrovia", "Asia/Kolkata", "Asia/Manila"]
)
def test_offsets_with_seconds_and_zones_before_their_first_change_are_no_trouble(zone: str) -> None:
    for year in (2, 1583, 1844, 1845, 1883, 1891, 1931, 1972):
        start = datetime(year, 1, 1, tzinfo=UTC)
        ticks = Crontab("30 2 * * *", zone).ticks_after(start, 400)
        assert all(timedelta(0) < later - tick <= timedelta(days=2, hours=1) for tick, later in pairwise(ticks))


def test_a_gap_that_ends_within_a_minute_is_kept_to_the_second() -> None:
    """Monrovia went from -00:44:30 to UTC on 7 January 1972."""
    end_of_gap = datetime(1972, 1, 7, 0, 44, 30, tzinfo=UTC)
    assert Crontab("10 0 7 1 *", "Africa/Monrovia").ticks_after(datetime(1972, 1, 6, 12, tzinfo=UTC), 1) == [end_of_gap]


@pytest.mark.parametrize("change", CHANGES)
def test_neither_a_skipped_nor_a_repeated_hour_is_walked_through(change: str) -> None:
    """Of the 86,400 seconds that Apia left out, one is looked at."""
    zone, moment = CHANGES[change]
    looked_at: list[datetime] = []

    def every_second(wall: datetime) -> Iterator[datetime]:
        for local in fields_of("* * * * * *").times_from(wall):
            looked_at.append(local)
            yield local

    for minutes in range(-61, 62, 10):
        looked_at.clear()
        list(islice(instants_after(moment + minutes * MINUTE - timedelta(seconds=2), ZoneInfo(zone), every_second), 4))
        assert len(looked_at) <= 6


# Properties


relaxed = settings(deadline=None, max_examples=80)  # a busy machine is no failure
zones = st.sampled_from(sorted({zone for zone, _ in CHANGES.values()} | {"UTC", "Europe/London"}))
near_changes = st.builds(
    lambda change, hours, microseconds: CHANGES[change][1] + timedelta(hours=hours, microseconds=microseconds),
    st.sampled_from(sorted(CHANGES)),
    st.integers(-30, 30),
    st.sampled_from([0, 1, -1, 60_000_000]) | st.integers(0, 3_600_000_000),
)
moments = near_changes | st.datetimes(
    datetime(1880, 1, 1), datetime(2120, 1, 1), timezones=st.sampled_from([UTC, ZoneInfo("Asia/Kolkata")])
)


def field(low: int, high: int) -> st.SearchStrategy[str]:
    number = st.integers(low, high)
    between = st.tuples(number, number).filter(lambda ends: ends[0] < ends[1])
    return st.one_of(
        st.just("*"),
        st.integers(1, high).map("*/{}".format),
        st.lists(number, min_size=1, max_size=3, unique=True).map(lambda numbers: ",".join(map(str, numbers))),
        between.map(lambda ends: f"{ends[0]}-{ends[1]}"),
        st.tuples(between, st.integers(1, 20)).map(lambda parts: f"{parts[0][0]}-{parts[0][1]}/{parts[1]}"),
    )


# Whether days that are all named are "restricted" has a test of its own: the oracle takes only a star for any day.
crontab_texts = st.builds(
    "{} {} {} {} {}".format,
    field(0, 59),
    field(0, 23),
    st.just("*") | field(1, 28).filter(lambda days: days != "*/1"),
    st.just("*") | field(1, 12),
    st.just("*") | field(0, 6).filter(lambda days: days not in ("*/1", "0-6", "0-6/1")),
)
times_of_day = st.times().map(lambda hour: hour.replace(microsecond=hour.microsecond // 1000 * 1000))
rules = st.one_of(
    st.builds(Crontab, crontab_texts, zones),
    st.builds(Every, st.timedeltas(timedelta(milliseconds=1), timedelta(days=400))),
    st.builds(CronDailySchedule, zones, st.lists(times_of_day, min_size=1, max_size=5, unique=True)),
)


@relaxed
@given(rule=rules, moment=moments, count=st.integers(0, 12))
def test_ticks_are_after_the_moment_and_strictly_increase_in_utc(rule: Rule, moment: datetime, count: int) -> None:
    ticks = rule.ticks_after(moment, count)
    assert len(ticks) == count
    assert all(earlier < later for earlier, later in pairwise([moment, *ticks]))
    assert all(tick.tzinfo is UTC for tick in ticks)


@relaxed
@given(rule=rules, moment=moments, cuts=st.lists(st.integers(0, 4), max_size=4))
def test_it_does_not_matter_in_how_many_steps_one_asks(rule: Rule, moment: datetime, cuts: list[int]) -> None:
    collected: list[datetime] = []
    for cut in cuts:
        collected += rule.ticks_after(collected[-1] if collected else moment, cut)
    assert collected == rule.ticks_after(moment, sum(cuts))


@relaxed
@given(rule=rules, moment=moments, part=st.floats(0, 1))
def test_asked_from_any_moment_between_none_is_lost_or_new(rule: Rule, moment: datetime, part: float) -> None:
    ticks = rule.ticks_after(moment, 6)
    between = moment + (ticks[3] - moment) * part
    rest = [tick for tick in ticks if tick > between]
    assert rule.ticks_after(between, len(rest)) == rest


@relaxed
@given(expression=crontab_texts, change=st.sampled_from(sorted(CHANGES)), minutes=st.integers(-1500, 1500))
@example(expression="*/7 */2 * * *", change="Apia, a day skipped", minutes=0)
def test_any_crontab_near_any_change_ticks_when_the_oracle_says(expression: str, change: str, minutes: int) -> None:
    zone, moment = CHANGES[change]
    start, end = moment + minutes * MINUTE, moment + timedelta(hours=50)
    expected = [tick for tick in oracle_around(change).ticks(matcher(expression)) if tick > start]
    assert ticks_until(Crontab(expression, zone), start, end) == expected


@relaxed
@given(text=st.text(alphabet="0123456789*/-,#?LWRHhlw@ abcfmnorstu()", max_size=24) | st.text(max_size=12))
def test_any_text_is_a_rule_or_refused_with_a_reason(text: str) -> None:
    with suppress(InvalidInput):
        rule = parse_rule(text)
        assert len(rule.ticks_after(NOON, 2)) == 2


# What an expression may say


@pytest.mark.parametrize(
    ("expression", "ticks"),
    [
        ("@hourly", ["2026-01-01 13:00:00", "2026-01-01 14:00:00"]),
        ("@daily", ["2026-01-02 00:00:00", "2026-01-03 00:00:00"]),
        ("@midnight", ["2026-01-02 00:00:00", "2026-01-03 00:00:00"]),
        ("@weekly", ["2026-01-04 00:00:00", "2026-01-11 00:00:00"]),
        ("@monthly", ["2026-02-01 00:00:00", "2026-03-01 00:00:00"]),
        ("@yearly", ["2027-01-01 00:00:00", "2028-01-01 00:00:00"]),
        ("@Annually", ["2027-01-01 00:00:00", "2028-01-01 00:00:00"]),
        ("0 0 * * 7", ["2026-01-04 00:00:00", "2026-01-11 00:00:00"]),
        ("0 0 * * 7 30", ["2026-01-04 00:00:30", "2026-01-11 00:00:30"]),
        (
            "0 0 ? * FRI-MON",
            ["2026-01-02 00:00:00", "2026-01-03 00:00:00", "2026-01-04 00:00:00", "2026-01-05 00:00:00"],
        ),
        ("0 0 1 FEB,apr *", ["2026-02-01 00:00:00", "2026-04-01 00:00:00"]),
        ("0 0 * * * */30", ["2026-01-02 00:00:00", "2026-01-02 00:00:30"]),
        ("0 22-1 * * *", ["2026-01-01 22:00:00", "2026-01-01 23:00:00", "2026-01-02 00:00:00", "2026-01-02 01:00:00"]),
        ("50/5 12 * * *", ["2026-01-01 12:50:00", "2026-01-01 12:55:00", "2026-01-02 12:50:00"]),
        ("0 0 L * *", ["2026-01-31 00:00:00", "2026-02-28 00:00:00", "2026-03-31 00:00:00"]),
        ("0 0 15,L 2 *", ["2026-02-15 00:00:00", "2026-02-28 00:00:00", "2027-02-15 00:00:00"]),
        ("0 0 * * fri#2", ["2026-01-09 00:00:00", "2026-02-13 00:00:00"]),
        ("0 0 * * mon#5", ["2026-03-30 00:00:00", "2026-06-29 00:00:00"]),
        ("0 0 * * L5", ["2026-01-30 00:00:00", "2026-02-27 00:00:00"]),
        (
            "0 0 10 * fri#2",
            ["2026-01-09 00:00:00", "2026-01-10 00:00:00", "2026-02-10 00:00:00", "2026-02-13 00:00:00"],
        ),
        ("0 0 1W * *", ["2026-02-02 00:00:00", "2026-03-02 00:00:00", "2026-04-01 00:00:00"]),
        ("0 0 1W 8 *", ["2026-08-03 00:00:00", "2027-08-02 00:00:00"]),
        ("0 0 31W 1,5 *", ["2026-01-30 00:00:00", "2026-05-29 00:00:00"]),
        ("0 0 13 * fri", ["2026-01-02 00:00:00", "2026-01-09 00:00:00", "2026-01-13 00:00:00"]),
        ("0 0 1-31 * fri", ["2026-01-02 00:00:00", "2026-01-03 00:00:00", "2026-01-04 00:00:00"]),
        ("0 0 */5 * 0-6", ["2026-01-06 00:00:00", "2026-01-11 00:00:00"]),
        ("0 0 29 2 *", ["2028-02-29 00:00:00", "2032-02-29 00:00:00"]),
        ("0 0 * 2 1#5", ["2044-02-29 00:00:00", "2072-02-29 00:00:00", "2112-02-29 00:00:00"]),
    ],
)
def test_a_crontab_says_when(expression: str, ticks: list[str]) -> None:
    assert [f"{tick:%Y-%m-%d %H:%M:%S}" for tick in Crontab(expression).ticks_after(NOON, len(ticks))] == ticks


@pytest.mark.parametrize(
    ("expression", "reason"),
    [
        ("", "The crontab expression is blank. Write five fields such as '0 2 * * *', or '@daily'."),
        ("0 25 * * *", "The hour field '25' of the crontab expression '0 25 * * *' is not valid. It may be 0-23;"),
        ("60 * * * *", "The minute field '60' … It may be 0-59;"),
        ("0 0 0 * *", "The day of month field '0' … It may be 1-31,"),
        ("0 0 0 * * *", "The day of month field '0' … With six fields, the seconds come last."),
        ("0 0 2 * * ?", "The second field '?' … With six fields, the seconds come last."),
        ("0 0 1 foo *", "The month field 'foo' … It may be 1-12 or jan-dec;"),
        ("0 0 * * 8", "The day of week field '8' … It may be 0-7 or sun-sat,"),
        ("*/0 * * * *", "The minute field '*/0' "),
        ("\u0661 * * * *", "The minute field '\u0661' "),
        ("0 2 * *", "has 4 fields. It needs five (minute, hour, day of month, month, day of week), or six, of which"),
        ("tomorrow", "has 1 field. It needs five"),
        ("0 2 * * * 0 2030", "has a seventh field, for years, which is not supported. Leave it out."),
        ("@reboot", "'@reboot' has no meaning here"),
        (
            "@often",
            "'@often' is not known. The names are @hourly, @daily, @midnight, @weekly, @monthly, @yearly, @annually.",
        ),
        ("@every 1h30m", "is a period, not a crontab. Use parse_rule('@every 1h30m'), or Every(period)."),
        (
            "H 2 * * *",
            "The minute field 'h' … is hashed or random, so two installers would not agree on it. Write a number.",
        ),
        ("0 R(1-5) * * *", "The hour field 'r(1-5)' … is hashed or random"),
        ("0 0 30 2 *", "'0 0 30 2 *' never ticks: no month it names has such a day."),
        ("0 0 31 4,6 *", "never ticks"),
        ("5-5 * * * *", "has a range of one value, '5-5'. Write that value alone, or * for any."),
        ("59/5 * * * *", "has a range of one value, '59/5'."),
        ("0 0 * dec/2 *", "has a range of one value, 'dec/2'."),
        ("0 22-4/5 * * *", "has a step in a range that runs over 23, '22-4/5'. Write a list."),
        ("0 0 * * *,fri#2", "mixes days of every week with 'fri#2', one of a month. Use two schedules."),
    ],
)
def test_a_bad_expression_is_refused_with_the_reason(expression: str, reason: str) -> None:
    with pytest.raises(InvalidInput, match=words(reason)):
        Crontab(expression)


@pytest.mark.parametrize(
    ("zone", "reason"),
    [
        ("Europe/Bucuresti", "The time zone 'Europe/Bucuresti' is not known here. Did you mean 'Europe/Bucharest'?"),
        ("", "The time zone '' is not known here. Use an IANA name such as 'Europe/Bucharest'."),
        ("Europe", "'Europe' is not known here"),
        ("../../etc/passwd", "is not known here"),
        ("nul\0", "is not known here"),
        ("x" * 5000, "is not known here"),
        ("localtime", "'localtime' is not known here"),
        ("right/UTC", "'right/UTC' is not known here"),
        (None, "must be an IANA name such as 'Europe/Bucharest', not None."),
        (UTC, "must be an IANA name such as 'Europe/Bucharest', not datetime.timezone.utc."),
    ],
)
def test_an_unknown_zone_is_refused_where_it_is_written(zone: Any, reason: str) -> None:
    for make in (
        lambda: Crontab("@daily", zone),
        lambda: CronDailySchedule(zone, [time(1)]),
        lambda: parse_rule("@every 1h", zone),
    ):
        with pytest.raises(InvalidInput, match=words(reason)):
            make()


@pytest.mark.parametrize(
    ("text", "period"),
    [
        ("@every 1h30m", timedelta(minutes=90)),
        ("@every 2d", timedelta(days=2)),
        (" @EVERY  1h 30m 10s ", timedelta(hours=1, minutes=30, seconds=10)),
        ("@every 1.5s", timedelta(milliseconds=1500)),
        ("@every 250ms", timedelta(milliseconds=250)),
        ("@every 0.1s0.1s0.1s", timedelta(milliseconds=300)),
    ],
)
def test_a_period_can_be_written_as_text(text: str, period: timedelta) -> None:
    assert parse_rule(text, "Europe/Bucharest") == Every(period)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("@every", "The rule '@every' has no duration that can be read. Write days, hours, … such as '@every 1h30m'"),
        ("@every hour", "has no duration"),
        ("@every 90", "has no duration"),
        ("@every -1h", "has no duration"),
        ("@every 0s", "The period must be at least one millisecond"),
        ("@every 99999d", "The period must be at most 36525 days, a century"),
        ("@every 999999999999d", "The duration of the rule '@every 999999999999d' is too long."),
        (5, "A rule must be text such as '0 2 * * *' or '@every 1h30m', not 5."),
    ],
)
def test_a_period_that_cannot_be_read_is_refused(text: Any, reason: str) -> None:
    with pytest.raises(InvalidInput, match=words(reason)):
        parse_rule(text)


def test_other_text_is_a_crontab_in_the_zone() -> None:
    assert parse_rule("@daily", "Asia/Kolkata") == Crontab("@daily", "Asia/Kolkata")


@pytest.mark.parametrize(
    "period", [0, -1, timedelta(0), 0.0001, timedelta(microseconds=999), float("nan"), True, "1h", None]
)
def test_a_period_is_a_millisecond_or_more(period: Any) -> None:
    with pytest.raises(InvalidInput, match="The period must be"):
        Every(period)


def test_a_period_in_seconds_keeps_its_milliseconds() -> None:
    """1.001 * 1000 is 1000.9999999999999."""
    assert Every(1.001).period == timedelta(milliseconds=1001)


@pytest.mark.parametrize(
    ("hours", "reason"),
    [
        ([], "hours is empty; a daily schedule needs at least one, such as time(12)."),
        (time(12), "hours must be a sequence such as [time(12), time(18, 30)], not datetime.time(12, 0)."),
        ("12:00", "hours must be a sequence"),
        (None, "hours must be a sequence"),
        (["12:00"], "Each of the hours must be a datetime.time such as time(18, 30), not '12:00'."),
        (
            [time(12, tzinfo=UTC)],
            "The hour 12:00:00+00:00 has a time zone of its own. Leave it out: the schedule has one.",
        ),
        ([time(12), time(18), time(12)], "The hour 12:00 is given twice. Leave one out."),
    ],
)
def test_hours_that_are_none_are_refused(hours: Any, reason: str) -> None:
    with pytest.raises(InvalidInput, match=words(reason)):
        CronDailySchedule("UTC", hours)


@pytest.mark.parametrize("setting", ["schedule_in_advance", "schedule_interval"])
def test_a_daily_schedule_looks_ahead_for_some_time(setting: str) -> None:
    assert getattr(CronDailySchedule("UTC", [time(1)], **{setting: 90}), setting) == timedelta(seconds=90)  # type: ignore[arg-type]
    with pytest.raises(InvalidInput, match=f"{setting} must be at least one millisecond"):
        CronDailySchedule("UTC", [time(1)], **{setting: timedelta(0)})  # type: ignore[arg-type]


# Asking


RULES: Sequence[Rule] = [Crontab("@daily", "Asia/Kolkata"), Every(60), CronDailySchedule("UTC", [time(12)])]


@pytest.mark.parametrize("rule", RULES)
def test_a_moment_must_be_aware(rule: Rule) -> None:
    for moment in (datetime(2026, 1, 1), "now", None):
        with pytest.raises(InvalidInput, match=r"moment (is a naive datetime|must be an aware datetime)"):
            rule.ticks(moment)  # type: ignore[arg-type]


@pytest.mark.parametrize("rule", RULES)
def test_a_count_is_a_whole_number(rule: Rule) -> None:
    assert rule.ticks_after(NOON, 0) == []
    for count in (-1, 1.5, True, None):
        with pytest.raises(InvalidInput, match="count must be a whole number of ticks, 0 or more, not"):
            rule.ticks_after(NOON, count)  # type: ignore[arg-type]


@pytest.mark.parametrize("rule", [*RULES, Crontab("* * * * *", "America/New_York"), Every(timedelta(days=36525))])
def test_ticks_end_with_the_calendar(rule: Rule) -> None:
    east, west = timezone(timedelta(hours=14)), timezone(timedelta(hours=-12))
    for end in (datetime.max.replace(tzinfo=UTC), datetime.max.replace(tzinfo=west), datetime.max.replace(tzinfo=east)):
        assert len(list(islice(rule.ticks(end), 2000))) < 2000
    with pytest.raises(InvalidInput, match="is in the year 1; ticks begin with the year 2"):
        rule.ticks(datetime.min.replace(tzinfo=east))


@pytest.mark.parametrize("rule", RULES)
def test_rules_are_values(rule: Rule) -> None:
    same = pickle.loads(pickle.dumps(rule))  # noqa: S301
    assert same == rule
    assert {same, rule} == {rule}
    with pytest.raises(AttributeError):
        rule.zone = rule.period = "UTC"  # type: ignore[attr-defined]


def test_a_zone_may_be_given_as_a_zoneinfo() -> None:
    assert Crontab("@daily", ZoneInfo("Asia/Kolkata")).zone == "Asia/Kolkata"
    assert CronDailySchedule(ZoneInfo("UTC"), [time(1)]) == CronDailySchedule("UTC", [time(1)])


def test_the_space_between_fields_does_not_matter() -> None:
    assert Crontab(" 0\t2  * * * ") == Crontab("0 2 * * *")


def test_threads_may_ask_one_rule_at_once() -> None:
    rule = Crontab("*/7 * * * *", "Europe/Bucharest")
    expected = rule.ticks_after(NOON, 300)
    answers: list[list[datetime]] = []
    threads = [threading.Thread(target=lambda: answers.append(rule.ticks_after(NOON, 300))) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert answers == [expected] * 8


def test_rules_need_no_django_settings() -> None:
    use = "from delayed_queue.cron import Crontab; Crontab('@daily')"
    code = f"{use}; from django.conf import settings; print(settings.configured)"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env={})
    assert run.stdout.strip() == "False"


# Hashes


@pytest.mark.parametrize(
    ("rule", "config_hash"),
    [
        (Every(timedelta(hours=1)), "4916474562628112070d240d515ba44d"),
        (Every(3600), "4916474562628112070d240d515ba44d"),
        (CronDailySchedule("UTC", [time(12), time(18)]), "ac4a97d66f972bdaad77be2731bb7c2a"),
    ],
)
def test_the_hash_is_the_one_of_the_jvm_library(rule: Rule, config_hash: str) -> None:
    assert rule.config_hash == config_hash


def md5(text: str) -> str:
    return hashlib.md5(text.encode(), usedforsecurity=False).hexdigest()


def test_hours_are_hashed_in_the_given_order_and_the_shortest_form() -> None:
    hours = [time(12), time(9, 5), time(12, 0, 30), time(12, 0, 0, 500_000), time(12, 0, 0, 1), time(0, 0, 1, 20_000)]
    text = "12:00, 09:05, 12:00:30, 12:00:00.500, 12:00:00.000001, 00:00:01.020"
    schedule = CronDailySchedule("Europe/Bucharest", hours, schedule_interval=5)
    assert schedule.config_hash == md5(f"\ndaily-cron:\n  zone: Europe/Bucharest\n  hours: {text}\n")


def test_the_hash_of_a_crontab_is_made_in_the_same_manner() -> None:
    rule = Crontab("0  2 * * *", "Europe/Bucharest")
    assert rule.config_hash == md5("\ncrontab:\n  zone: Europe/Bucharest\n  expression: 0 2 * * *\n")
    assert rule.config_hash not in (
        Crontab("0 2 * * *").config_hash,
        Crontab("0 3 * * *", "Europe/Bucharest").config_hash,
    )
