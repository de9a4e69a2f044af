"""A model of several parts: each counted by itself, all merged by shares, the whole cut to a size (merging.py).

So a text twenty times as long as another does not drown it, and a file holds the n-grams that are worth most.
"""

import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path

from lm.building import (
    BuildReport,
    BuildSettings,
    Corpus,
    build_one,
    check_texts,
    convert,
    lines_of,
    perplexity,
    with_spelled,
    write_corpus,
)
from lm.errors import LanguageError
from lm.merging import merge, pruned
from lm.ngram_table import write_arpa
from lm.toolchain import Progress, tools

FINE_BITS = 16
"""Values of a part on the way: they are rounded to the settings' bits once, at the end."""


@dataclass(frozen=True)
class Part:
    """Texts that are counted together, and what share they have in the whole."""

    texts: tuple[Path, ...]
    settings: BuildSettings
    share: float = 1.0

    def __post_init__(self) -> None:
        if not self.share > 0:
            raise LanguageError(f"the share of a part must be above 0, not {self.share}")


def build_parts(
    parts: Sequence[Part], out: Path, most_mb: float | None, progress: Progress, keep_arpa: bool = False
) -> BuildReport:
    """Build `out` (a .binary trie) of at most `most_mb` megabytes; each part holds one line in a hundred out."""
    if most_mb is not None and not most_mb > 0:
        raise LanguageError(f"the size of a model must be above 0 MB, not {most_mb}")
    check_texts([text for part in parts for text in part.texts])
    programs, started = tools(progress), time.perf_counter()
    out = out if out.suffix == ".binary" else out.with_name(out.name + ".binary")
    out.parent.mkdir(parents=True, exist_ok=True)
    settings = parts[0].settings
    with tempfile.TemporaryDirectory(prefix="silica-lm-", dir=out.parent) as scratch:
        corpora: list[Corpus] = []
        reports: list[BuildReport] = []
        for number, part in enumerate(parts):
            folder = Path(scratch) / str(number)
            folder.mkdir()
            corpora.append(
                with_spelled(write_corpus(part.texts, folder, progress), part.settings.spelled_lines)
            )
            alone = replace(part.settings, quantise_bits=FINE_BITS, spelled_lines=0)
            reports.append(build_one(programs.lmplz, corpora[-1], folder / "part", alone, progress, False))
        progress(f"merging {len(parts)} parts" if len(parts) > 1 else "weighing what to keep")
        whole = merge(
            [
                (Path(report.path), lines_of(corpus.learned), part.share)
                for report, corpus, part in zip(reports, corpora, parts, strict=True)
            ]
        )
        if most_mb is not None:
            whole = pruned(whole, most_mb * 1e6)
        arpa = out.with_suffix(".arpa") if keep_arpa else Path(scratch) / "model.arpa"
        progress("writing")
        write_arpa(arpa, whole.levels, whole.probs, whole.words)
        convert(arpa, out, settings, progress)
        held_out = list(chain.from_iterable(lines_of(corpus.held_out) for corpus in corpora))
        return BuildReport(
            path=str(out),
            words=sum(report.words for report in reports),
            lines=sum(report.lines for report in reports),
            vocabulary=len(whole.words),
            ngrams=tuple(len(level.words) for level in whole.levels),
            size_bytes=out.stat().st_size,
            seconds=time.perf_counter() - started,
            held_out=perplexity(out, held_out) if held_out else None,
            settings=settings,
        )
