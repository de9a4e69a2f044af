"""How steady the words are that a listener sees while somebody speaks, and what that costs in time.

    python -m benchmarks.partials --manifest MANIFEST --heard MODEL FOLDER [--heard ...] [--every N] [--out FOLDER]

FOLDER holds one `.npy` of log-probabilities for each clip (`silica evaluate --streamed --save-log-probs`), MODEL is
whose they are: its card says which search suits it. Frames come in hops; after each the best reading is shown by the
service's own Transcript. Results go to `partials.json` and `partials.md`.
"""

import argparse
import json
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np

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
    """Words taken back for each final word; how long after its end a word is seen, and seen for good."""
    decoder = open_decoder(kind, ALPHABET, ngram)
    taken_back = words = 0.0
    errors = ErrorCounts()
    seen: list[float] = []
    settled: list[float] = []
    for clip in clips:
        transcript, utterance = Transcript(), decoder.start(settings)
        partial_words: list[tuple[float, list[str]]] = []
        for first in range(0, len(clip.log_probs), HOP_FRAMES):
            frames = clip.log_probs[first : first + HOP_FRAMES]
            utterance.push(frames)
            transcript.partial(utterance.best(), 0, len(clip.log_probs) * 320)
            partial_words.append(
                ((first + len(frames)) * OUTPUT_S, [word.text for word in transcript.partial_words])
            )
        final = utterance.finish()
        readings = transcript.final(final, 0, len(clip.log_probs) * 320)
        taken_back += transcript.revision_ratio * max(1, len(readings[0].words))
        words += len(final[0].words)
        errors += word_errors(clip.text, final[0].text)
        partial_words.append((len(clip.log_probs) * OUTPUT_S, [word.text for word in final[0].words]))
        for place, word in enumerate(final[0].words):
            right = [len(texts) > place and texts[place] == word.text for _, texts in partial_words]
            end_s = word.end_frame * OUTPUT_S
            seen.append(partial_words[right.index(True)][0] - end_s)
            for_good = len(right) - (right[::-1].index(False) if False in right else len(right))
            settled.append(partial_words[for_good][0] - end_s)
    return {
        "taken_back_a_word": round(taken_back / max(words, 1), 3),
        "seen_after_s": round(float(np.mean(seen)), 3),
        "seen_for_good_after_s": round(float(np.mean(settled)), 3),
        "seen_for_good_after_s_95": round(float(np.percentile(settled, 95)), 3),
        "wer_percent": round(100 * errors.rate, 2),
    }


def table(clips: list[Clip], search: SearchSettings) -> list[dict[str, Any]]:
    """Greedy, the search alone, and the search with the model in the box at every agreement."""
    ngram = NGram.shipped()
    rows = [{"search": "greedy", "agreement": ""} | measure(clips, "greedy", None, search)]
    rows.append({"search": "beam alone", "agreement": 0.0} | measure(clips, "beam", None, search))
    for agreement in AGREEMENTS:
        found = measure(clips, "beam", ngram, replace(search, partial_agreement=agreement))
        rows.append({"search": "beam + model in the box", "agreement": agreement} | found)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--heard", nargs=2, action="append", required=True, metavar=("MODEL", "FOLDER"))
    parser.add_argument("--manifest", type=Path, required=True)
    parser.add_argument("--every", type=int, default=4, help="one clip in this many (default 4)")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results")
    arguments = parser.parse_args()
    warm_up()
    today = datetime.now(UTC).date().isoformat()
    results: dict[str, Any] = {"date": today}
    lines = [
        f"Measured {today} by benchmarks/partials.py; hops of {HOP_FRAMES * OUTPUT_S:.2f} s. Times run from the end of "
        "a word in the sound that was pushed; look-ahead, queue and computing come on top.",
    ]
    for name, folder in arguments.heard:
        clips = read_clips(arguments.manifest, Path(folder), arguments.every)
        results[name] = {
            "clips": len(clips),
            "rows": table(clips, alphabet_and_search(name)[1]),
        }
        lines += [
            f"\n{name}, {len(clips)} clips:\n",
            "| search | agreement | taken back a final word | first seen after | seen for good after | 95 % | WER |",
            "|---|---|---|---|---|---|---|",
        ]
        lines += [
            f"| {row['search']} | {row['agreement']} | {row['taken_back_a_word']} | {row['seen_after_s']} s "
            f"| {row['seen_for_good_after_s']} s | {row['seen_for_good_after_s_95']} s | {row['wer_percent']} % |"
            for row in results[name]["rows"]
        ]
    arguments.out.mkdir(parents=True, exist_ok=True)
    (arguments.out / "partials.json").write_text(json.dumps(results, indent=1) + "\n")
    (arguments.out / "partials.md").write_text("\n".join(lines) + "\n")
    print("\n".join(lines))


if __name__ == "__main__":
    main()
