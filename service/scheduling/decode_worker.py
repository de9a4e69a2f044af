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
from lm.search.settings import SearchSettings
from service.scheduling.process import StartFailed, limit_to_one_thread, send_message, serve_messages
from service.session.messages import EndUtterance, PushFrames, Replay

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

WARM_UP_TEXT = "the people who came to the house that night said they had never heard such a thing before "
FRAMES_PER_CHARACTER = 4
WARM_UP_HYPOTHESES = 8
"""So many of an utterance's readings are ranked again: 7.5 on average over dev-clean."""
LIVE_PARTIAL_AGREEMENT = 0.15
"""While it is spoken a word is told once this share of the readings stands behind it, an utterance's first at once.
What that costs in words taken back and in seconds: benchmarks/partials.py and latency.py."""


@dataclass(frozen=True, slots=True)
class OpenStream:
    """A stream comes to this worker: how its words are searched."""

    n_best: int
    hotwords: tuple[Any, ...]
    decoder: str


@dataclass(frozen=True, slots=True)
class ForgetStream:
    """The stream is gone."""


Slices = Iterator[tuple[Hypothesis, ...] | None]
DecodeCommand = OpenStream | ForgetStream | PushFrames | EndUtterance | Replay
DecodeBatch = list[tuple[str, DecodeCommand]]


@dataclass(frozen=True, slots=True)
class DecodeResult:
    """What one Push or EndUtterance brought, the processor seconds since the answer before it, or why it failed."""

    stream: str
    serial: int
    hypotheses: tuple[Hypothesis, ...]
    decode_s: float
    error: str | None = None


@dataclass(frozen=True, slots=True)
class DecoderReady:
    """The decoders are loaded and compiled; what a second of sound costs them."""

    decode_s_per_s: float


@dataclass
class PendingRescoring:
    """An ended utterance whose readings are being ranked again, a slice at a time."""

    answer: DecodeResult
    slices: "Slices"


class UtteranceTable:
    """The state of one worker: decoders by kind, streams, open utterances."""

    def __init__(
        self,
        alphabet: str,
        language_model: str | None,
        search: SearchSettings = SearchSettings(),
    ) -> None:
        from lm.language_model import LanguageModel

        self._alphabet = alphabet
        self._search = search
        self._language = LanguageModel.load(language_model or "none")
        self._decoders: dict[str, Any] = {}
        self._streams: dict[str, tuple[Any, Any]] = {}
        self._utterances: dict[tuple[str, int, int], Any] = {}
        self._pending_rescoring: dict[str, deque[PendingRescoring | DecodeResult]] = {}
        self._counted_s = time.process_time()

    def warm_up(self) -> float:
        """Compile and touch everything once, so that the first stream waits for nothing; then measure.

        Answers the seconds that a second of rehearsed speech takes.
        """
        frames = warm_up_frames(self._alphabet)
        self.handle([("", OpenStream(1, (), "beam"))])
        self.handle([("", PushFrames(1, 0, 1, frames[:32], True)), ("", EndUtterance(2, 0, 1))])
        while self.rescore_slice() is not None:
            pass
        self._warm_up_rescoring()
        begin = time.process_time()
        pieces = [PushFrames(3, 0, 2, frames[at : at + 32], True) for at in range(0, len(frames), 32)]
        self.handle([*(("", piece) for piece in pieces), ("", EndUtterance(4, 0, 2)), ("", ForgetStream())])
        self._pending_rescoring.clear()
        searched_s = time.process_time() - begin
        begin = time.process_time()
        self._warm_up_rescoring()
        ranked_s = time.process_time() - begin
        return searched_s / (len(frames) * OUTPUT_S) + ranked_s / (
            len(WARM_UP_TEXT) * FRAMES_PER_CHARACTER * OUTPUT_S
        )

    def _warm_up_rescoring(self) -> None:
        """Rank as many readings as an utterance usually has."""
        from lm.rescoring.n_best import score_sentences

        words = WARM_UP_TEXT.split()
        hypotheses = [" ".join(words[:place] + words[place + 1 :]) for place in range(WARM_UP_HYPOTHESES)]
        for rescorer in self._language.rescoring.rescorers if self._language.rescoring else ():
            score_sentences(rescorer, hypotheses)

    def handle(self, batch: DecodeBatch) -> list[DecodeResult]:
        """Every command in order; an answer for each that wants one, if it does not wait for a ranking."""
        answers: list[DecodeResult] = []
        for stream, command in batch:
            if isinstance(command, PushFrames | EndUtterance):
                hypotheses: tuple[Hypothesis, ...] = ()
                slices, error = None, None
                try:
                    if isinstance(command, EndUtterance):
                        slices, hypotheses = self._end_utterance(stream, command)
                    else:
                        hypotheses = self._push(stream, command)
                except Exception as trouble:  # one stream's trouble stays that stream's
                    error = f"{type(trouble).__name__}: {trouble}"
                answer = DecodeResult(stream, command.serial, hypotheses, self._spent_s(), error)
                if slices is not None:
                    self._pending_rescoring.setdefault(stream, deque()).append(
                        PendingRescoring(answer, slices)
                    )
                elif stream in self._pending_rescoring:
                    self._pending_rescoring[stream].append(answer)  # a stream's answers keep their order
                else:
                    answers.append(answer)
            else:
                # What goes wrong here is told with the stream's next push, which finds it missing.
                with contextlib.suppress(Exception):
                    self._note(stream, command)
        return answers

    def rescore_slice(self) -> list[DecodeResult] | None:
        """Rank a few readings of one ended utterance, then the next stream's: no stream waits for all of it.

        Answers what is finished by that; None when there is nothing to rank.
        """
        if not self._pending_rescoring:
            return None
        stream, waiting = next(iter(self._pending_rescoring.items()))
        ranking = waiting[0]
        assert isinstance(ranking, PendingRescoring)
        del self._pending_rescoring[stream]
        try:
            found, error = next(ranking.slices), None
        except Exception as trouble:
            found, error = (), f"{type(trouble).__name__}: {trouble}"
        spent_s = ranking.answer.decode_s + self._spent_s()
        ranking.answer = replace(ranking.answer, hypotheses=found or (), decode_s=spent_s, error=error)
        answers: list[DecodeResult] = []
        if found is not None:
            waiting.popleft()
            answers.append(ranking.answer)
            while waiting and isinstance(following := waiting[0], DecodeResult):
                answers.append(following)
                waiting.popleft()
        if waiting:
            self._pending_rescoring[stream] = waiting
        return answers

    def _spent_s(self) -> float:
        """Processor seconds since the last answer: messages, replays and goodbyes are paid for too."""
        before_s, self._counted_s = self._counted_s, time.process_time()
        return self._counted_s - before_s

    def _note(self, stream: str, command: OpenStream | ForgetStream | Replay) -> None:
        if isinstance(command, OpenStream):
            self._streams[stream] = self._settings(command)
        elif isinstance(command, ForgetStream):
            self._streams.pop(stream, None)
            for key in [key for key in self._utterances if key[0] == stream]:
                del self._utterances[key]
        elif stream in self._streams:
            self._utterance(stream, command.channel, command.utterance).push(command.log_probs)

    def _push(self, stream: str, command: PushFrames) -> tuple[Hypothesis, ...]:
        utterance = self._utterance(stream, command.channel, command.utterance)
        if len(command.log_probs):
            utterance.push(command.log_probs)
        return (utterance.best(),) if command.want_hypothesis else ()

    def _end_utterance(
        self, stream: str, command: EndUtterance
    ) -> "tuple[Slices | None, tuple[Hypothesis, ...]]":
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

    def _settings(self, command: OpenStream) -> tuple[Any, Any]:
        if command.decoder not in self._decoders:
            kind: Any = command.decoder
            self._decoders[kind] = self._language.decoder(kind, self._alphabet)
        settings = replace(
            self._search,
            n_best=command.n_best,
            hotwords=command.hotwords,
            # Without a language model a word is hardly ever taken back.
            partial_agreement=LIVE_PARTIAL_AGREEMENT if self._language.ngram else 0.0,
        )
        return self._decoders[command.decoder], settings


def warm_up_frames(alphabet: str) -> "npt.NDArray[np.float32]":
    """Log-probabilities as of somebody who speaks without a pause and is heard with doubt: to search them costs a
    quarter more than what the model in the box makes of speech in noise."""
    import numpy as np

    classes = [alphabet.find(letter) for letter in WARM_UP_TEXT * 2]
    rng = np.random.default_rng(0)
    doubt = rng.dirichlet(np.full(len(alphabet) + 1, 0.3), len(classes) * FRAMES_PER_CHARACTER)
    share = rng.beta(0.3, 3.0, (len(doubt), 1))
    certain = np.zeros_like(doubt)
    certain[:, -1] = 1.0
    for at, letter in enumerate(classes):
        certain[at * FRAMES_PER_CHARACTER] = 0.0
        certain[at * FRAMES_PER_CHARACTER, letter] = 1.0
    found: npt.NDArray[np.float32] = np.log(np.maximum((1 - share) * certain + share * doubt, 1e-6)).astype(
        "f4"
    )
    return found


def main(channel: socket.socket, alphabet: str, language_model: str | None, search: SearchSettings) -> None:
    """Load and compile, say so, then answer until the parent is gone."""
    limit_to_one_thread()
    from lm.errors import LanguageError

    try:
        table = UtteranceTable(alphabet, language_model, search)
        decode_s_per_s = table.warm_up()
    except (LanguageError, OSError) as error:
        send_message(channel, StartFailed(str(error)))
        return
    send_message(channel, DecoderReady(decode_s_per_s))
    serve_messages(channel, table.handle, table.rescore_slice)
