"""Work done ahead in a thread of its own, while what is done already is used: the sound of the next steps is altered
during this one.
"""

from collections import deque
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

import torch

Given = TypeVar("Given")
Made = TypeVar("Made")


def prefetch(
    source: Iterator[Given], work: Callable[[Given], Made], depth: int = 3
) -> Generator[Made, None, None]:
    """`work` of each of the source's things, in their order, `depth` of them ahead; errors come where they belong."""

    def one() -> Made:
        made = work(next(source))
        if torch.cuda.is_available():
            torch.cuda.current_stream().synchronize()
        return made

    waiting: deque[Future[Made]] = deque()
    with ThreadPoolExecutor(1, thread_name_prefix="ahead", initializer=_quiet) as pool:
        try:
            while True:
                while len(waiting) < depth:
                    waiting.append(pool.submit(one))
                yield waiting.popleft().result()
        finally:
            pool.shutdown(wait=True, cancel_futures=True)
            if isinstance(source, Generator):
                source.close()


def _quiet() -> None:
    """All are settings of the thread, not of the process. On a GPU what is done ahead has a stream of its own, first in
    turn: the host waits for it often, and is not to wait for the step in hand. What it makes stays known until that
    step is done, so that none of its memory is used again too soon."""
    torch.set_flush_denormal(True)
    torch.set_num_threads(1)
    if torch.cuda.is_available():
        torch.cuda.set_stream(torch.cuda.Stream(priority=-1))  # type: ignore[no-untyped-call]
