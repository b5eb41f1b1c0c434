"""Imported by every Python whose path has this folder: its clock is CHAOS_SHIFT seconds ahead."""

import datetime
import os
import time

_shift = int(os.environ["CHAOS_SHIFT"])
_time, _time_ns = time.time, time.time_ns
_datetime = datetime.datetime


class _ShiftedDatetime(_datetime):
    @classmethod
    def now(cls, tz=None):
        return _datetime.now(tz) + datetime.timedelta(seconds=_shift)

    @classmethod
    def utcnow(cls):
        return cls.now(datetime.UTC).replace(tzinfo=None)


time.time = lambda: _time() + _shift
time.time_ns = lambda: _time_ns() + _shift * 10**9
datetime.datetime = _ShiftedDatetime
