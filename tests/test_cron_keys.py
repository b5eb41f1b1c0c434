"""Keys of ticks: the shared format, and whose they are."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from delayed_queue.cron import Every, TickKey, check_key_prefix, key_range, parse_tick_key, tick_key, tick_pattern
from delayed_queue.errors import InvalidInput

HOURLY = Every(3600).config_hash
NOON = datetime(2024, 1, 1, 12, tzinfo=UTC)


def test_a_key_is_the_one_of_the_jvm_library() -> None:
    expected = "prefix-/4916474562628112070d240d515ba44d/20240101-120000.000000000"
    assert tick_key("prefix-", HOURLY, NOON) == expected


@pytest.mark.parametrize(
    ("moment", "text"),
    [
        (datetime(2024, 1, 1, 1, 2, 3, 4, tzinfo=UTC), "20240101-010203.000004000"),
        (datetime(2024, 1, 1, 1, tzinfo=timezone(timedelta(hours=2))), "20231231-230000.000000000"),
        (datetime(987, 6, 5, tzinfo=UTC), "09870605-000000.000000000"),
    ],
)
def test_the_time_in_a_key_is_utc_to_nine_digits(moment: datetime, text: str) -> None:
    assert tick_key("p", "h", moment) == f"p/h/{text}"


def test_the_longest_prefix_makes_the_longest_key() -> None:
    assert len(tick_key("p" * 141, HOURLY, NOON)) == 200


@pytest.mark.parametrize(
    ("prefix", "reason"),
    [
        ("p" * 142, "The key prefix 'pppppppppppppppppppp'… has 142 characters; 141 is the most."),
        ("", "The key prefix is blank; it must name something."),
        (" \t", "The key prefix is blank"),
        ("a\0b", "The key prefix 'a\\x00b' contains a NUL character, which PostgreSQL cannot store."),
        ("\ud800", "is not valid Unicode text."),
        (None, "The key prefix must be text, not NoneType."),
    ],
)
def test_a_bad_prefix_is_refused(prefix: Any, reason: str) -> None:
    for use in (check_key_prefix, key_range, tick_pattern, lambda bad: tick_key(bad, HOURLY, NOON)):
        with pytest.raises(InvalidInput, match=re.escape(reason)):
            use(prefix)


@pytest.mark.parametrize(
    ("config_hash", "reason"),
    [
        ("", "The config hash is blank"),
        ("a/b", "The config hash 'a/b' contains '/', which ends it in the key of a tick. Use another character."),
        ("a\0", "The config hash 'a\\x00' contains a NUL"),
        (None, "The config hash must be text, not NoneType."),
    ],
)
def test_a_bad_hash_is_refused(config_hash: Any, reason: str) -> None:
    with pytest.raises(InvalidInput, match=re.escape(reason)):
        tick_key("p", config_hash, NOON)


def test_a_hash_of_ones_own_may_be_longer_while_the_key_is_not_too_long() -> None:
    assert len(tick_key("p" * 73, "h" * 100, NOON)) == 200
    with pytest.raises(InvalidInput, match="has 201 characters; 200 is the most"):
        tick_key("p" * 74, "h" * 100, NOON)


def test_a_naive_moment_is_refused() -> None:
    with pytest.raises(InvalidInput, match="moment is a naive datetime"):
        tick_key("p", HOURLY, datetime(2024, 1, 1))


relaxed = settings(deadline=None)  # a busy machine is no failure
prefixes = st.text(st.characters(exclude_characters="\0", codec="utf-8"), min_size=1, max_size=141).filter(
    lambda text: not text.isspace()
)
hashes = st.text(st.characters(exclude_characters="\0/", codec="utf-8"), min_size=1, max_size=32).filter(
    lambda text: not text.isspace()
)
moments = st.datetimes(timezones=st.just(UTC))


@relaxed
@given(prefix=prefixes, config_hash=hashes, moment=moments)
def test_a_key_can_be_read_back(prefix: str, config_hash: str, moment: datetime) -> None:
    assert parse_tick_key(prefix, tick_key(prefix, config_hash, moment)) == TickKey(config_hash, moment)


@relaxed
@given(prefix=prefixes, other=prefixes, moment=moments)
def test_a_key_belongs_to_its_own_prefix_alone(prefix: str, other: str, moment: datetime) -> None:
    if prefix != other:
        assert parse_tick_key(prefix, tick_key(other, HOURLY, moment)) is None


@pytest.mark.parametrize(
    "key",
    [
        f"job/sub/{HOURLY}/20240101-120000.000000000",
        f"jobs/{HOURLY}/20240101-120000.000000000",
        f"job/{HOURLY}/20240101-120000.000000000\n",
        f"job/{HOURLY}/20240101-120000.000000",
        f"job/{HOURLY}/20241301-120000.000000000",
        f"job/{HOURLY}/٢٠٢٤٠١٠١-120000.000000000",
        "job//20240101-120000.000000000",
        "job/42",
        "job",
    ],
)
def test_keys_that_only_look_alike_are_not_of_the_prefix(key: str) -> None:
    assert parse_tick_key("job", key) is None


def test_nanoseconds_of_the_jvm_are_cut_off() -> None:
    found = parse_tick_key("job", "job/h/20240101-120000.123456789")
    assert found == TickKey("h", NOON.replace(microsecond=123456))


@pytest.mark.parametrize(
    "prefix", ["a_b", "a%b", "a.b", "a\\b", "a(b", "^a$", "[a]", "a b\n", "***:a", "(?i)a", "ț|é*"]
)
def test_a_prefix_is_ordinary_text_in_a_pattern(prefix: str) -> None:
    pattern = tick_pattern(prefix)
    assert re.search(pattern, tick_key(prefix, HOURLY, NOON))
    assert not re.search(pattern, tick_key("axb", HOURLY, NOON))


@pytest.mark.parametrize(("prefix", "pattern"), [("job-1", r"^job\-1"), ("ț_é", "^ț_é"), ("a\\d", r"^a\\d")])
def test_letters_are_not_escaped_as_postgresql_would_take_them_for_escapes(prefix: str, pattern: str) -> None:
    assert tick_pattern(prefix) == pattern + r"/([^/]+)/([0-9]{8}-[0-9]{6}\.[0-9]{9})$"


@relaxed
@given(prefix=prefixes, key=prefixes, own=st.booleans())
def test_the_range_of_a_prefix_holds_what_begins_with_it_and_a_slash(prefix: str, key: str, own: bool) -> None:
    key = f"{prefix}/{key}" if own else key
    first, end = (bound.encode() for bound in key_range(prefix))  # collation "C" compares bytes
    assert (first <= key.encode() < end) == key.startswith(f"{prefix}/")
