"""Where the time goes between the end of speech and its final, and between a word and its partial: without a machine.

    python -m benchmarks.latency --audio FOLDER [--model NAME] [--recordings N] [--out FILE]

Recordings are pushed in messages of 0.1 s as a microphone would send them, through the service's own Session and word
search, in a world in which nothing takes time: what is left is what the design itself waits for. The table goes to
`latency.md`.
"""

import argparse
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import numpy.typing as npt

from acoustic import catalogue
from acoustic.architectures import ModelConfig
from acoustic.runtime import open_backend
from acoustic.windows import Window, WindowOutput, WindowPlan, windows_of, with_hop
from benchmarks.load import RATE, read_programs
from service.scheduling.decode_worker import UtteranceTable
from service.scheduling.device import alphabet_and_search
from service.session.events import Final, Partial
from service.session.messages import AudioReceived, Finish
from service.session.stream_settings import StreamSettings
from tests.session.synchronous_driver import SynchronousDriver

HOPS_S = (0.16, 0.32, 0.64, 1.28)
MESSAGE = RATE // 10
Sound = npt.NDArray[np.float32]


@dataclass
class Seen:
    """What one stream's client saw, in seconds."""

    seconds: float
    windows: int = 0
    letters: list[float] = field(default_factory=list)
    """From a last word's end to the frame at which silence ended the utterance."""
    hop: list[float] = field(default_factory=list)
    """From when that frame could be known at the earliest to when it was."""
    final: list[float] = field(default_factory=list)
    first: list[float] = field(default_factory=list)
    word: list[float] = field(default_factory=list)
    taken_back: float = 0.0


def follow(
    sound: Sound, log_probs: Sound, config: ModelConfig, plan: WindowPlan, utterances: UtteranceTable
) -> Seen:
    """One stream: the seconds that its finals and words spent at each station, in messages of 0.1 s."""
    seen = Seen(seconds=sound.size / RATE)

    def network(window: Window) -> WindowOutput:
        # At once, and what the model answered before: hops change nothing of it.
        seen.windows += 1
        return WindowOutput(window.span, log_probs[window.span.keep_first : window.span.keep_end])

    driver = SynchronousDriver(network, StreamSettings(), config, plan, utterances)
    look_ahead_s = plan.look_ahead_frames / config.frames_per_second
    shown: dict[int, tuple[str, float]] = {}
    for end in range(MESSAGE, sound.size + MESSAGE, MESSAGE):
        now_s, told = min(end, sound.size) / RATE, len(driver.events)
        driver.handle(AudioReceived(sound[None, end - MESSAGE : end]))
        for event in driver.events[told:]:
            if not isinstance(event, Partial | Final):
                continue
            words = event.words if isinstance(event, Partial) else event.alternatives[0].words
            if words and not shown:
                seen.first.append(now_s - words[0].start_s)
            for place, word in enumerate(words):
                if shown.get(place, ("", 0.0))[0] != word.text:
                    shown[place] = (word.text, now_s)
            if isinstance(event, Final):
                if event.speech_final and words:
                    seen.letters.append(event.end_s - words[-1].end_s)
                    seen.hop.append(now_s - event.end_s - look_ahead_s)
                    seen.final.append(now_s - words[-1].end_s)
                seen.word += [shown[place][1] - word.end_s for place, word in enumerate(words)]
                seen.taken_back += driver.session.channels[0].transcript.revision_ratio * max(1, len(words))
                shown = {}
    driver.handle(Finish())
    return seen


def measured(model: str, audio: Sequence[Path], recordings: int) -> tuple[float, list[list[str]]]:
    """The look-ahead, and a row for every hop."""
    backend = open_backend(model)
    config = backend.config
    alphabet, search = alphabet_and_search(model)
    utterances = UtteranceTable(alphabet, "shipped", search)
    silence = np.zeros(RATE, np.float32)
    programs = read_programs(audio, recordings, 20.0)
    sounds = [np.concatenate([each.sound / np.float32(32768), silence]) for each in programs]
    heard = []
    for sound in sounds:
        memory, parts = None, []
        for window in windows_of(sound, config, with_hop(config, backend.plan, max(HOPS_S))):
            one = backend.forward([replace(window, memory=memory)])[0]
            memory = one.memory
            parts.append(one.log_probs)
        heard.append(np.concatenate(parts))
    rows = []
    for hop_s in HOPS_S:
        plan = with_hop(config, backend.plan, hop_s)
        seen = [
            follow(sound, each, config, plan, utterances) for sound, each in zip(sounds, heard, strict=True)
        ]
        rows.append([f"{hop_s:g}", *described(seen)])
    return backend.plan.look_ahead_frames / config.frames_per_second, rows


def described(seen: Sequence[Seen]) -> list[str]:
    """One hop's cells."""

    def both(name: str) -> str:
        values = [value for each in seen for value in getattr(each, name)]
        return " / ".join(f"{np.percentile(values, p):.2f}" for p in (50, 95)) if values else ""

    windows = sum(each.windows for each in seen) / sum(each.seconds for each in seen)
    words = sum(len(each.word) for each in seen)
    taken_back = sum(each.taken_back for each in seen) / max(1, words)
    felt = [both(name) for name in ("letters", "hop", "final", "first", "word")]
    return [f"{windows:.2f}", *felt, f"{taken_back:.3f}"]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--audio", type=Path, nargs="+", required=True, help="files or folders of speech")
    parser.add_argument("--model", default=catalogue.default_name())
    parser.add_argument("--recordings", type=int, default=25, help="of about 20 s each")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results" / "latency.md")
    arguments = parser.parse_args()
    look_ahead_s, rows = measured(arguments.model, arguments.audio, arguments.recordings)
    lines = [
        f"Measured {datetime.now(UTC).date()} by benchmarks/latency.py: {arguments.model}, "
        f"{arguments.recordings} recordings of {', '.join(path.name for path in arguments.audio)}. "
        "What a client feels where nothing takes time: seconds, median / 95th percentile.",
        "",
        f"Speech end to final = letters silent + look-ahead ({look_ahead_s:g} s) + hop and message.",
        "",
        "| hop | windows a second | letters silent | hop and message | speech end to final | first word's begin to "
        "first partial | word's end to when it is seen for good | words taken back a final word |",
        "|---|---|---|---|---|---|---|---|",
        *(f"| {' | '.join(row)} |" for row in rows),
    ]
    arguments.out.write_text("\n".join(lines) + "\n")
    print("\n".join(lines))


if __name__ == "__main__":
    main()
