"""Recurring rules: values that can be asked for their next ticks, and the keys of these ticks."""

from delayed_queue.cron.crontab import Crontab
from delayed_queue.cron.daily import CronDailySchedule
from delayed_queue.cron.every import Every
from delayed_queue.cron.keys import TickKey, check_key_prefix, key_range, parse_tick_key, tick_key, tick_pattern
from delayed_queue.cron.parsing import parse_rule
from delayed_queue.cron.rules import Rule

__all__ = [
    "CronDailySchedule",
    "Crontab",
    "Every",
    "Rule",
    "TickKey",
    "check_key_prefix",
    "key_range",
    "parse_rule",
    "parse_tick_key",
    "tick_key",
    "tick_pattern",
]
