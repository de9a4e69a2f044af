"""What each key has used today, and its open streams: one small database that every serving process shares.

Minutes survive a restart. A process writes every few seconds; in between it counts by itself.
"""

import contextlib
import logging
import os
import sqlite3
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from service.logs import log_event

WRITE_INTERVAL_S = 2.0
"""Between two writings; so much may be lost when a process is killed, and be unseen by its sisters."""
KEEP_DAYS = 7
TABLES = """
CREATE TABLE IF NOT EXISTS minutes (day TEXT, key TEXT, seconds REAL, PRIMARY KEY (day, key));
CREATE TABLE IF NOT EXISTS streams (process TEXT, key TEXT, count INTEGER, PRIMARY KEY (process, key));
"""


def usage_file(keys_file: Path) -> Path:
    """Beside the keys."""
    return keys_file.with_name(f"{keys_file.stem}-usage.sqlite")


def utc_day() -> str:
    """Today, as keys count it."""
    return time.strftime("%Y-%m-%d", time.gmtime())


class Usage:
    """The database, and what has not been written into it yet."""

    def __init__(
        self,
        file: Path,
        clock: Callable[[], float] = time.monotonic,
        today: Callable[[], str] = utc_day,
    ) -> None:
        self._clock, self._today = clock, today
        self._pending: dict[str, float] = {}
        self._seconds: dict[str, float] = {}
        self._day = today()
        self._written_s = float("-inf")
        self._process = process_name(os.getpid())
        self._reported = False
        self._database = self._open(file)
        self._delete_stale_rows()
        self.write()

    def seconds(self, key: str) -> float:
        """Sound of this key today, by everybody, as far as it is known here."""
        self._start_new_day()
        return self._seconds.get(key, 0.0) + self._pending.get(key, 0.0)

    def add(self, key: str, seconds: float) -> None:
        """So much more."""
        self._start_new_day()
        self._pending[key] = self._pending.get(key, 0.0) + seconds
        if self._clock() - self._written_s >= WRITE_INTERVAL_S:
            self.write()

    def write(self) -> None:
        """Bring the database up to date, and see what others have counted."""
        self._written_s = self._clock()
        with self._access() as database:
            database.execute("BEGIN IMMEDIATE")
            database.executemany(
                "INSERT INTO minutes VALUES (?, ?, ?) "
                "ON CONFLICT DO UPDATE SET seconds = seconds + excluded.seconds",
                [(self._day, key, seconds) for key, seconds in self._pending.items()],
            )
            found = database.execute(
                "SELECT key, seconds FROM minutes WHERE day = ?", (self._day,)
            ).fetchall()
            database.execute("COMMIT")
            self._seconds, self._pending = dict(found), {}

    def set_streams(self, key: str, count: int) -> None:
        """This process has so many streams of this key open."""
        with self._access() as database:
            database.execute(
                "INSERT INTO streams VALUES (?, ?, ?) ON CONFLICT DO UPDATE SET count = excluded.count",
                (self._process, key, count),
            )

    def streams_elsewhere(self, key: str) -> int:
        """Streams of this key in other processes."""
        found = 0
        with self._access() as database:
            (found,) = database.execute(
                "SELECT COALESCE(SUM(count), 0) FROM streams WHERE key = ? AND process != ?",
                (key, self._process),
            ).fetchone()
        return int(found)

    def close(self) -> None:
        """The last writing."""
        self.write()
        self._database.close()
        self._reported = True  # what is heard after the end is lost without a word

    # ---- inside

    def _start_new_day(self) -> None:
        if self._today() != self._day:
            self.write()
            self._day = self._today()
            self._seconds, self._pending = {}, {}

    def _delete_stale_rows(self) -> None:
        """Days long past and processes that are no more."""
        with self._access() as database:
            oldest = time.strftime("%Y-%m-%d", time.gmtime(time.time() - KEEP_DAYS * 86400))
            database.execute("DELETE FROM minutes WHERE day < ?", (oldest,))
            for (process,) in database.execute("SELECT DISTINCT process FROM streams").fetchall():
                if process == self._process or process_name(int(process.split("-")[0])) != process:
                    database.execute("DELETE FROM streams WHERE process = ?", (process,))

    def _open(self, file: Path) -> sqlite3.Connection:
        """The database; one in memory where there can be no file: each process then counts by itself."""
        try:
            file.parent.mkdir(parents=True, exist_ok=True)
            database = sqlite3.connect(file, timeout=2.0, isolation_level=None)
            file.chmod(0o600)
            database.execute("PRAGMA journal_mode=WAL")
            database.execute("PRAGMA synchronous=NORMAL")
            database.executescript(TABLES)
        except (sqlite3.Error, OSError) as error:
            self._report_once(error)
            database = sqlite3.connect(":memory:", isolation_level=None)
            database.executescript(TABLES)
        return database

    @contextlib.contextmanager
    def _access(self) -> Iterator[sqlite3.Connection]:
        """A database that cannot be used now costs shared limits, not the service: counted here meanwhile."""
        try:
            yield self._database
        except (sqlite3.Error, OSError) as error:
            with contextlib.suppress(sqlite3.Error):
                if self._database.in_transaction:
                    self._database.execute("ROLLBACK")
            self._report_once(error)

    def _report_once(self, error: Exception) -> None:
        """Once."""
        if not self._reported:
            self._reported = True
            log_event(logging.ERROR, "key usage cannot be kept", reason=str(error))


def process_name(pid: int) -> str:
    """A process that cannot be mistaken for a later one of the same number; empty when there is none."""
    try:
        started = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
        return f"{pid}-{started}"
    except (OSError, IndexError):
        try:
            os.kill(pid, 0)
        except OSError:
            return ""
        return f"{pid}-"
