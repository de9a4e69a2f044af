"""Stability and latency of interim results, by decoder and `partial_agreement`.

    python -m benchmarks.partials --manifest MANIFEST --log-probs MODEL FOLDER [--log-probs ...] [--every N]

FOLDER holds one `.npy` of log-probabilities per clip (`silica evaluate --streamed --save-log-probs`) of MODEL, whose
card gives the search settings. Frames are pushed in hops through the service's `Transcript`. Times count from the end
of a word in the pushed audio; look-ahead, queueing and computing come on top. Results: `partials.json`.
"""

import argparse
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.provenance import provenance
from lm.decoders import DecoderKind, SearchSettings, open_decoder
from lm.ngram.trie import NGram
from lm.score import ErrorCounts, word_errors
from lm.search.beam import warm_up
from lm.search.tuning import ALPHABET, Clip, read_clips
from service.scheduling.device import alphabet_and_search
from service.session.transcript import Transcript

OUTPUT_S = 0.02
HOP_FRAMES = 32
AGREEMENTS = (0.0, 0.1, 0.15, 0.2, 0.25, 0.3, 0.4, 0.5)


def measure(
    clips: list[Clip], kind: DecoderKind, ngram: NGram | None, settings: SearchSettings
) -> dict[str, Any]:
    """Revisions per final word; time from the end of a word until it is first shown and until it is stable."""
    decoder = open_decoder(kind, ALPHABET, ngram)
    revisions = words = 0.0
    errors = ErrorCounts()
    first_shown_s: list[float] = []
    stable_s: list[float] = []
    for clip in clips:
        transcript, utterance = Transcript(), decoder.start(settings)
        shown: list[tuple[float, list[str]]] = []
        for first in range(0, len(clip.log_probs), HOP_FRAMES):
            frames = clip.log_probs[first : first + HOP_FRAMES]
            utterance.push(frames)
            transcript.partial(utterance.best(), 0, len(clip.log_probs) * 320)
            shown.append(((first + len(frames)) * OUTPUT_S, [word.text for word in transcript.partial_words]))
        final = utterance.finish()
        hypotheses = transcript.final(final, 0, len(clip.log_probs) * 320)
        revisions += transcript.revision_ratio * max(1, len(hypotheses[0].words))
        words += len(final[0].words)
        errors += word_errors(clip.text, final[0].text)
        shown.append((len(clip.log_probs) * OUTPUT_S, [word.text for word in final[0].words]))
        for index, word in enumerate(final[0].words):
            matches = [len(texts) > index and texts[index] == word.text for _, texts in shown]
            end_s = word.end_frame * OUTPUT_S
            first_shown_s.append(shown[matches.index(True)][0] - end_s)
            stable_from = len(matches) - (matches[::-1].index(False) if False in matches else len(matches))
            stable_s.append(shown[stable_from][0] - end_s)
    return {
        "revisions_per_word": round(revisions / max(words, 1), 3),
        "first_shown_s": round(float(np.mean(first_shown_s)), 3),
        "stable_s": round(float(np.mean(stable_s)), 3),
        "stable_p95_s": round(float(np.percentile(stable_s, 95)), 3),
        "wer_percent": round(100 * errors.rate, 2),
    }


def table(clips: list[Clip], search: SearchSettings) -> list[dict[str, Any]]:
    """Greedy, beam search without a language model, and with the shipped n-gram at each agreement."""
    ngram = NGram.shipped()
    rows = [{"search": "greedy", "agreement": ""} | measure(clips, "greedy", None, search)]
    rows.append({"search": "beam", "agreement": 0.0} | measure(clips, "beam", None, search))
    for agreement in AGREEMENTS:
        row = measure(clips, "beam", ngram, replace(search, partial_agreement=agreement))
        rows.append({"search": "beam + shipped n-gram", "agreement": agreement} | row)
    return rows


def main() -> None:
    """Measure every model and save the results."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--log-probs", nargs=2, action="append", required=True, metavar=("MODEL", "FOLDER"))
    parser.add_argument("--manifest", type=Path, required=True)
    parser.add_argument("--every", type=int, default=4, help="use every Nth clip (default: %(default)s)")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results")
    arguments = parser.parse_args()
    warm_up()
    results: dict[str, Any] = {**provenance()}
    lines = []
    for name, folder in arguments.log_probs:
        clips = read_clips(arguments.manifest, Path(folder), arguments.every)
        results[name] = {
            "clips": len(clips),
            "rows": table(clips, alphabet_and_search(name)[1]),
        }
        lines += [
            f"\n{name}, {len(clips)} clips:\n",
            "| search | agreement | revisions per word | first shown | stable | stable p95 | WER |",
            "|---|---|---|---|---|---|---|",
        ]
        lines += [
            f"| {row['search']} | {row['agreement']} | {row['revisions_per_word']} | {row['first_shown_s']} s "
            f"| {row['stable_s']} s | {row['stable_p95_s']} s | {row['wer_percent']} % |"
            for row in results[name]["rows"]
        ]
    arguments.out.mkdir(parents=True, exist_ok=True)
    (arguments.out / "partials.json").write_text(json.dumps(results, indent=1) + "\n")
    print("\n".join(lines))


if __name__ == "__main__":
    main()
