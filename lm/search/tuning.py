"""`silica lm tune`: choose language model weight, word bonus and pruning by WER on stored log-probabilities.

The log-probabilities of a clip are in FOLDER/STEM.npy: [frames, classes], natural logarithm, blank last.
"""

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from acoustic.files import write_file
from lm.decoders import open_decoder
from lm.errors import LanguageError
from lm.ngram.trie import NGram
from lm.score import ErrorCounts, word_errors
from lm.search.settings import SearchSettings, parse_search_settings, settings_from_card
from lm.text.normalize import normalize

ALPHABET = " abcdefghijklmnopqrstuvwxyz'"


@dataclass(frozen=True)
class Clip:
    """A normalized transcript and the network's output for its audio."""

    text: str
    audio: str
    log_probs: NDArray[np.float32]
    speaker: str = ""


@dataclass(frozen=True)
class Trial:
    """One combination of settings and its errors."""

    model: str
    size_bytes: int
    lm_weight: float
    word_bonus: float
    errors: int
    words: int

    @property
    def rate(self) -> float:
        """Word error rate."""
        return self.errors / max(self.words, 1)


@dataclass(frozen=True)
class TuningResult:
    """The best trial, and all trials."""

    best: Trial
    tried: tuple[Trial, ...]


def read_clips(manifest: Path, folder: Path, every: int = 1) -> list[Clip]:
    """The manifest's clips with a transcript and stored log-probabilities; one in `every` of them."""
    manifest = manifest / "manifest.jsonl" if manifest.is_dir() else manifest
    if not manifest.is_file():
        raise LanguageError(f"there is no manifest {manifest}; expected a manifest.jsonl or its folder")
    try:
        lines = manifest.read_text(encoding="utf-8").splitlines()
    except UnicodeDecodeError as error:
        raise LanguageError(f"{manifest} is not UTF-8 text (byte {error.start}): is it a manifest?") from None
    clips: list[Clip] = []
    audio_by_file: dict[Path, str] = {}
    for number, line in enumerate(lines, start=1):
        try:
            entry = json.loads(line)
            stored = folder / (Path(entry["audio"]).stem + ".npy")
            text = entry["text"]
        except (json.JSONDecodeError, KeyError, TypeError) as error:
            expected = "expected an object with audio and text"
            raise LanguageError(f"{manifest}, line {number}: {expected} ({error})") from None
        if text is not None and stored.is_file():
            if stored in audio_by_file:
                raise LanguageError(
                    f"{manifest}, line {number}: {entry['audio']} and {audio_by_file[stored]} would share the "
                    f"log-probabilities in {stored}; file names must be unique"
                )
            audio_by_file[stored] = entry["audio"]
            audio, speaker = str(entry["audio"]), str(entry.get("speaker") or entry["audio"])
            clips.append(Clip(normalize(text), audio, _load_log_probs(stored), speaker))
    if not clips:
        raise LanguageError(f"no clip of {manifest} has log-probabilities in {folder} (AUDIO-STEM.npy)")
    return clips[::every]


def _load_log_probs(path: Path) -> NDArray[np.float32]:
    try:
        log_probs: NDArray[np.float32] = np.load(path).astype(np.float32)
    except (ValueError, EOFError) as error:
        raise LanguageError(
            f"{path} is not a file of log-probabilities ({error}); `silica evaluate --save-log-probs` writes one"
        ) from None
    return log_probs


def measure(clips: Sequence[Clip], ngram: NGram, settings: SearchSettings) -> ErrorCounts:
    """Word errors of the beam search over all clips."""
    decoder = open_decoder("beam", ALPHABET, ngram)
    total = ErrorCounts()
    for clip in clips:
        utterance = decoder.start(settings)
        utterance.push(clip.log_probs)
        total += word_errors(clip.text, utterance.finish()[0].text)
    return total


def fixed_search_settings(texts: Iterable[str]) -> SearchSettings:
    """The search settings that are not tuned, from `NAME=VALUE`."""
    settings = parse_search_settings(texts)
    for name in {"lm_weight", "word_bonus"} & set(settings):
        raise LanguageError(
            f"--search {name}: this setting is tuned. Give its candidates with --weights or --bonuses."
        )
    return settings_from_card({"search": settings})


def tune(
    clips: Sequence[Clip],
    models: Sequence[Path],
    weights: Sequence[float],
    bonuses: Sequence[float],
    progress: Callable[[str], None],
    settings: SearchSettings | None = None,
) -> TuningResult:
    """Try every weight with every bonus on the first model, and the best pair on the other models (prunings)."""
    if not (models and weights and bonuses):
        raise LanguageError("tuning needs at least one model, one weight and one word bonus")
    settings = settings or SearchSettings()
    tried: list[Trial] = []

    def try_weights(path: Path, ngram: NGram, weight: float, bonus: float) -> Trial:
        counts = measure(clips, ngram, replace(settings, lm_weight=weight, word_bonus=bonus))
        size = path.stat().st_size
        tried.append(Trial(path.name, size, weight, bonus, counts.errors, counts.words))
        progress(f"{path.name}: weight {weight:g}, bonus {bonus:g}: WER {100 * counts.rate:.2f} %")
        return tried[-1]

    ngram = NGram.load(models[0])
    best = min(
        (try_weights(models[0], ngram, weight, bonus) for weight in weights for bonus in bonuses),
        key=_sort_key,
    )
    for path in models[1:]:
        other = try_weights(path, NGram.load(path), best.lm_weight, best.word_bonus)
        best = min(best, other, key=_sort_key)
    return TuningResult(best, tuple(tried))


def _sort_key(trial: Trial) -> tuple[int, int, float, float]:
    """Fewest errors, then the smallest model, then the smallest weights."""
    return trial.errors, trial.size_bytes, trial.lm_weight, trial.word_bonus


def write_result(tuned: TuningResult, folder: Path) -> tuple[Path, Path]:
    """Write the trials as tuned.json and the curves as tuned.png; returns both paths."""
    folder.mkdir(parents=True, exist_ok=True)
    values, plot = folder / "tuned.json", folder / "tuned.png"
    best = asdict(tuned.best) | {"wer": tuned.best.rate}
    tried = [asdict(trial) | {"wer": trial.rate} for trial in tuned.tried]
    write_file(values, json.dumps({"best": best, "tried": tried}, indent=1) + "\n")
    _plot(tuned, plot)
    return values, plot


def _plot(tuned: TuningResult, path: Path) -> None:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    first = tuned.tried[0].model
    models: dict[str, Trial] = {}
    for trial in sorted(tuned.tried, key=_sort_key, reverse=True):
        models[trial.model] = trial
    panels = min(2, len(models))  # the second panel compares models
    figure = Figure(figsize=(5 * panels, 4), layout="constrained")
    FigureCanvasAgg(figure)
    by_weight, *by_size = figure.subplots(1, panels, squeeze=False)[0]
    for bonus in sorted({trial.word_bonus for trial in tuned.tried}):
        points = [trial for trial in tuned.tried if trial.model == first and trial.word_bonus == bonus]
        points.sort(key=lambda trial: trial.lm_weight)
        by_weight.plot(
            [p.lm_weight for p in points], [100 * p.rate for p in points], "o-", label=f"bonus {bonus:g}"
        )
    by_weight.set(xlabel="language model weight", ylabel="WER, %", title=first)
    by_weight.legend()
    for panel in by_size:
        panel.margins(x=0.2)  # room for the names
        for name, trial in models.items():
            panel.plot(trial.size_bytes / 1e6, 100 * trial.rate, "o")
            panel.annotate(f" {name}", (trial.size_bytes / 1e6, 100 * trial.rate))
        panel.set(
            xlabel="model size, MB",
            ylabel="WER, %",
            title="best result of each model (pruning)",
        )
    figure.savefig(path, dpi=120)
