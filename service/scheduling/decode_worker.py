"""The decoder's child process: the open utterances of the streams pinned to it. Answers come in order."""

import contextlib
import socket
import time
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from acoustic.constants import OUTPUT_S
from lm.hypothesis import Hypothesis
from lm.search_settings import SearchSettings
from service.core.messages import Conclude, Push, Replay
from service.scheduling.process import Unable, one_thread, serve, tell

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

REHEARSED = "the people who came to the house that night said they had never heard such a thing before "
FRAMES_A_LETTER = 4
REHEARSED_READINGS = 8
"""So many of an utterance's readings are ranked again: 7.5 on average over dev-clean."""
TOLD_AT = 0.15
"""While it is spoken a word is told once this share of the readings stands behind it, an utterance's first at once.
What that costs in words taken back and in seconds: tests/perf/partials.py and latency.py."""


@dataclass(frozen=True, slots=True)
class Open:
    """A stream comes to this worker: how its words are searched."""

    n_best: int
    hotwords: tuple[Any, ...]
    decoder: str


@dataclass(frozen=True, slots=True)
class Forget:
    """The stream is gone."""


Slices = Iterator[tuple[Hypothesis, ...] | None]
Command = Open | Forget | Push | Conclude | Replay
Batch = list[tuple[str, Command]]


@dataclass(frozen=True, slots=True)
class Answer:
    """What one Push or Conclude brought, the processor seconds since the answer before it, or why it failed."""

    stream: str
    serial: int
    hypotheses: tuple[Hypothesis, ...]
    decode_s: float
    error: str | None = None


@dataclass(frozen=True, slots=True)
class Ready:
    """The decoders are loaded and compiled; what a second of sound costs them."""

    decode_s_per_s: float


@dataclass
class Ranking:
    """An ended utterance whose readings are being ranked again, a slice at a time."""

    answer: Answer
    slices: "Slices"


class Desk:
    """The state of one worker: decoders by kind, streams, open utterances."""

    def __init__(
        self,
        alphabet: str,
        language_model: str | None,
        search: SearchSettings = SearchSettings(),
    ) -> None:
        from lm.language import Language

        self._alphabet = alphabet
        self._search = search
        self._language = Language.load(language_model or "none")
        self._decoders: dict[str, Any] = {}
        self._streams: dict[str, tuple[Any, Any]] = {}
        self._utterances: dict[tuple[str, int, int], Any] = {}
        self._ranking: dict[str, deque[Ranking | Answer]] = {}
        self._counted_s = time.process_time()

    def warm(self) -> float:
        """Compile and touch everything once, so that the first stream waits for nothing; then measure.

        Answers the seconds that a second of rehearsed speech takes.
        """
        frames = rehearsal(self._alphabet)
        self.handle([("", Open(1, (), "beam"))])
        self.handle([("", Push(1, 0, 1, frames[:32], True)), ("", Conclude(2, 0, 1))])
        while self.go_on() is not None:
            pass
        self._rank_rehearsed()
        begin = time.process_time()
        pieces = [Push(3, 0, 2, frames[at : at + 32], True) for at in range(0, len(frames), 32)]
        self.handle([*(("", piece) for piece in pieces), ("", Conclude(4, 0, 2)), ("", Forget())])
        self._ranking.clear()
        searched_s = time.process_time() - begin
        begin = time.process_time()
        self._rank_rehearsed()
        ranked_s = time.process_time() - begin
        return searched_s / (len(frames) * OUTPUT_S) + ranked_s / (
            len(REHEARSED) * FRAMES_A_LETTER * OUTPUT_S
        )

    def _rank_rehearsed(self) -> None:
        """Rank as many readings as an utterance usually has."""
        from lm.rescore import log_probs

        words = REHEARSED.split()
        readings = [" ".join(words[:place] + words[place + 1 :]) for place in range(REHEARSED_READINGS)]
        for rescorer in self._language.rescoring.rescorers if self._language.rescoring else ():
            log_probs(rescorer, readings)

    def handle(self, batch: Batch) -> list[Answer]:
        """Every command in order; an answer for each that wants one, if it does not wait for a ranking."""
        answers: list[Answer] = []
        for stream, command in batch:
            if isinstance(command, Push | Conclude):
                hypotheses: tuple[Hypothesis, ...] = ()
                slices, error = None, None
                try:
                    if isinstance(command, Conclude):
                        slices, hypotheses = self._conclude(stream, command)
                    else:
                        hypotheses = self._push(stream, command)
                except Exception as trouble:  # one stream's trouble stays that stream's
                    error = f"{type(trouble).__name__}: {trouble}"
                answer = Answer(stream, command.serial, hypotheses, self._spent_s(), error)
                if slices is not None:
                    self._ranking.setdefault(stream, deque()).append(Ranking(answer, slices))
                elif stream in self._ranking:
                    self._ranking[stream].append(answer)  # a stream's answers keep their order
                else:
                    answers.append(answer)
            else:
                # What goes wrong here is told with the stream's next push, which finds it missing.
                with contextlib.suppress(Exception):
                    self._note(stream, command)
        return answers

    def go_on(self) -> list[Answer] | None:
        """Rank a few readings of one ended utterance, then the next stream's: no stream waits for all of it.

        Answers what is finished by that; None when there is nothing to rank.
        """
        if not self._ranking:
            return None
        stream, waiting = next(iter(self._ranking.items()))
        ranking = waiting[0]
        assert isinstance(ranking, Ranking)
        del self._ranking[stream]
        try:
            found, error = next(ranking.slices), None
        except Exception as trouble:
            found, error = (), f"{type(trouble).__name__}: {trouble}"
        spent_s = ranking.answer.decode_s + self._spent_s()
        ranking.answer = replace(ranking.answer, hypotheses=found or (), decode_s=spent_s, error=error)
        answers: list[Answer] = []
        if found is not None:
            waiting.popleft()
            answers.append(ranking.answer)
            while waiting and isinstance(following := waiting[0], Answer):
                answers.append(following)
                waiting.popleft()
        if waiting:
            self._ranking[stream] = waiting
        return answers

    def _spent_s(self) -> float:
        """Processor seconds since the last answer: messages, replays and goodbyes are paid for too."""
        before_s, self._counted_s = self._counted_s, time.process_time()
        return self._counted_s - before_s

    def _note(self, stream: str, command: Open | Forget | Replay) -> None:
        if isinstance(command, Open):
            self._streams[stream] = self._settings(command)
        elif isinstance(command, Forget):
            self._streams.pop(stream, None)
            for key in [key for key in self._utterances if key[0] == stream]:
                del self._utterances[key]
        elif stream in self._streams:
            self._utterance(stream, command.channel, command.utterance).push(command.log_probs)

    def _push(self, stream: str, command: Push) -> tuple[Hypothesis, ...]:
        utterance = self._utterance(stream, command.channel, command.utterance)
        if len(command.log_probs):
            utterance.push(command.log_probs)
        return (utterance.best(),) if command.want else ()

    def _conclude(self, stream: str, command: Conclude) -> "tuple[Slices | None, tuple[Hypothesis, ...]]":
        """The readings; or, where they are ranked again, the way to them."""
        utterance = self._utterance(stream, command.channel, command.utterance)
        del self._utterances[stream, command.channel, command.utterance]
        if hasattr(utterance, "finish_in_slices"):
            return utterance.finish_in_slices(), ()
        return None, tuple(utterance.finish())

    def _utterance(self, stream: str, channel: int, number: int) -> Any:
        key = (stream, channel, number)
        if key not in self._utterances:
            decoder, settings = self._streams[stream]
            self._utterances[key] = decoder.start(settings)
        return self._utterances[key]

    def _settings(self, command: Open) -> tuple[Any, Any]:
        if command.decoder not in self._decoders:
            kind: Any = command.decoder
            self._decoders[kind] = self._language.decoder(kind, self._alphabet)
        settings = replace(
            self._search,
            n_best=command.n_best,
            hotwords=command.hotwords,
            # Without a language model a word is hardly ever taken back.
            partial_agreement=TOLD_AT if self._language.ngram else 0.0,
        )
        return self._decoders[command.decoder], settings


def rehearsal(alphabet: str) -> "npt.NDArray[np.float32]":
    """Log-probabilities as of somebody who speaks without a pause and is heard with doubt: to search them costs a
    quarter more than what the model in the box makes of speech in noise."""
    import numpy as np

    classes = [alphabet.find(letter) for letter in REHEARSED * 2]
    rng = np.random.default_rng(0)
    doubt = rng.dirichlet(np.full(len(alphabet) + 1, 0.3), len(classes) * FRAMES_A_LETTER)
    share = rng.beta(0.3, 3.0, (len(doubt), 1))
    heard = np.zeros_like(doubt)
    heard[:, -1] = 1.0
    for at, letter in enumerate(classes):
        heard[at * FRAMES_A_LETTER] = 0.0
        heard[at * FRAMES_A_LETTER, letter] = 1.0
    found: npt.NDArray[np.float32] = np.log(np.maximum((1 - share) * heard + share * doubt, 1e-6)).astype(
        "f4"
    )
    return found


def main(channel: socket.socket, alphabet: str, language_model: str | None, search: SearchSettings) -> None:
    """Load and compile, say so, then answer until the parent is gone."""
    one_thread()
    from lm.errors import LanguageError

    try:
        desk = Desk(alphabet, language_model, search)
        decode_s_per_s = desk.warm()
    except (LanguageError, OSError) as error:
        tell(channel, Unable(str(error)))
        return
    tell(channel, Ready(decode_s_per_s))
    serve(channel, desk.handle, desk.go_on)
