"""The decoder's child process: the open utterances of the streams pinned to it. Answers come in order."""

import contextlib
import socket
import time
from dataclasses import dataclass
from typing import Any

from lm.hypothesis import Hypothesis
from service.core.messages import Conclude, Push, Replay
from service.scheduling.process import one_thread, serve, tell


@dataclass(frozen=True, slots=True)
class Open:
    """A stream comes to this worker: how its words are searched."""

    n_best: int
    hotwords: tuple[Any, ...]
    decoder: str


@dataclass(frozen=True, slots=True)
class Forget:
    """The stream is gone."""


Command = Open | Forget | Push | Conclude | Replay
Batch = list[tuple[str, Command]]


@dataclass(frozen=True, slots=True)
class Answer:
    """What one Push or Conclude brought, the seconds it took, or why it could not be done."""

    stream: str
    serial: int
    hypotheses: tuple[Hypothesis, ...]
    decode_s: float
    error: str | None = None


@dataclass(frozen=True, slots=True)
class Ready:
    """The decoders are loaded and compiled."""

    language_model: str


@dataclass(frozen=True, slots=True)
class Unable:
    """They cannot be loaded: the sentence for the user."""

    message: str


class Desk:
    """The state of one worker: decoders by kind, streams, open utterances."""

    def __init__(self, alphabet: str, language_model: str | None) -> None:
        from lm.ngram import NGram

        self._alphabet = alphabet
        if language_model is None:
            self._ngram = None
        else:
            self._ngram = NGram.shipped() if language_model == "shipped" else NGram.load(language_model)
        self._decoders: dict[str, Any] = {}
        self._streams: dict[str, tuple[Any, Any]] = {}
        self._utterances: dict[tuple[str, int, int], Any] = {}

    def warm(self) -> None:
        """Compile and touch everything once, so that the first stream waits for nothing."""
        import numpy as np

        self.handle([("", Open(1, (), "beam"))])
        frames = np.full((4, len(self._alphabet) + 1), -4.0, np.float32)
        self.handle([("", Push(1, 0, 1, frames, True)), ("", Conclude(2, 0, 1)), ("", Forget())])

    def handle(self, batch: Batch) -> list[Answer]:
        """Every command in order; an answer for each that wants one."""
        answers: list[Answer] = []
        for stream, command in batch:
            begin = time.perf_counter()
            if isinstance(command, Push | Conclude):
                try:
                    hypotheses, error = self._answer(stream, command), None
                except Exception as trouble:  # one stream's trouble stays that stream's
                    hypotheses, error = (), f"{type(trouble).__name__}: {trouble}"
                answers.append(Answer(stream, command.serial, hypotheses, time.perf_counter() - begin, error))
            else:
                # What goes wrong here is told with the stream's next push, which finds it missing.
                with contextlib.suppress(Exception):
                    self._note(stream, command)
        return answers

    def _note(self, stream: str, command: Open | Forget | Replay) -> None:
        if isinstance(command, Open):
            self._streams[stream] = self._settings(command)
        elif isinstance(command, Forget):
            self._streams.pop(stream, None)
            for key in [key for key in self._utterances if key[0] == stream]:
                del self._utterances[key]
        elif stream in self._streams:
            self._utterance(stream, command.channel, command.utterance).push(command.log_probs)

    def _answer(self, stream: str, command: Push | Conclude) -> tuple[Hypothesis, ...]:
        utterance = self._utterance(stream, command.channel, command.utterance)
        if isinstance(command, Conclude):
            del self._utterances[stream, command.channel, command.utterance]
            return tuple(utterance.finish())
        if len(command.log_probs):
            utterance.push(command.log_probs)
        return (utterance.best(),) if command.want else ()

    def _utterance(self, stream: str, channel: int, number: int) -> Any:
        key = (stream, channel, number)
        if key not in self._utterances:
            decoder, settings = self._streams[stream]
            self._utterances[key] = decoder.start(settings)
        return self._utterances[key]

    def _settings(self, command: Open) -> tuple[Any, Any]:
        from lm.decoders import open_decoder
        from lm.search_settings import SearchSettings

        if command.decoder not in self._decoders:
            self._decoders[command.decoder] = open_decoder(
                command.decoder,  # type: ignore[arg-type]
                self._alphabet,
                self._ngram,
            )
        settings = SearchSettings(n_best=command.n_best, hotwords=command.hotwords)
        return self._decoders[command.decoder], settings


def main(channel: socket.socket, alphabet: str, language_model: str | None) -> None:
    """Load and compile, say so, then answer until the parent is gone."""
    one_thread()
    from lm.errors import LanguageError

    try:
        desk = Desk(alphabet, language_model)
        desk.warm()
    except (LanguageError, OSError) as error:
        tell(channel, Unable(str(error)))
        return
    tell(channel, Ready(language_model or "none"))
    serve(channel, desk.handle)
