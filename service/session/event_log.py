"""The numbered events of one stream, bounded: unread ones, and read ones that a resuming client may need again.

Superseded partials are dropped. Every other event is stored until it is read, and the newest read ones after that.
No I/O.
"""

from collections import OrderedDict
from collections.abc import Iterator

from service.session.events import Event, Final, Partial

MAX_UNREAD = 1024
MAX_KEPT = 512


class EventLog:
    """Numbers events 1, 2, ... and delivers each to the reader once."""

    def __init__(self, max_unread: int = MAX_UNREAD, max_kept: int = MAX_KEPT) -> None:
        self._entries: OrderedDict[int, Event] = OrderedDict()
        self._unread: OrderedDict[int, None] = OrderedDict()
        self._last_partial: dict[int, int] = {}
        self._last = 0
        self._last_dropped = 0
        self._max_unread = max_unread
        self._max_kept = max_kept

    @property
    def last(self) -> int:
        """The number of the newest event."""
        return self._last

    @property
    def overflowed(self) -> bool:
        """Whether the reader is too slow: more unread events than the bound, superseded partials not counted."""
        return len(self._unread) > self._max_unread

    def append(self, event: Event) -> int:
        """Add an event; returns its number. A partial or final replaces the channel's last partial."""
        self._last += 1
        if isinstance(event, Partial | Final):
            self._drop(self._last_partial.pop(event.channel, None))
        if isinstance(event, Partial):
            self._last_partial[event.channel] = self._last
        self._entries[self._last] = event
        self._unread[self._last] = None
        return self._last

    def next(self) -> tuple[int, Event] | None:
        """The oldest unread event, or None."""
        if not self._unread:
            return None
        number = self._unread.popitem(last=False)[0]
        event = self._entries[number]
        self._trim()
        return number, event

    def can_resume(self, after: int) -> bool:
        """Whether every event after this number is still kept (superseded partials aside)."""
        return self._last_dropped <= after <= self._last

    def rewind(self, after: int) -> None:
        """Deliver everything after `after` again: the reader has seen the events up to it."""
        self._unread = OrderedDict((number, None) for number in self._entries if number > after)

    def __iter__(self) -> Iterator[tuple[int, Event]]:
        """Every kept event, oldest first."""
        return iter(self._entries.items())

    def _drop(self, number: int | None) -> None:
        if number is not None:
            self._entries.pop(number, None)
            self._unread.pop(number, None)

    def _trim(self) -> None:
        while len(self._entries) > self._max_kept:
            oldest = next(iter(self._entries))
            if self._unread and oldest >= next(iter(self._unread)):
                return
            del self._entries[oldest]
            self._last_dropped = oldest
