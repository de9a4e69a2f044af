"""A model of several parts: each counted by itself, all merged by shares, the whole cut to a size (merging.py).

So a text twenty times as long as another does not drown it, and a file holds the n-grams that are worth most.
"""

import tempfile
import time
from dataclasses import replace
from pathlib import Path

from lm.ngram.build import (
    BuildReport,
    Corpus,
    add_spelled_lines,
    build,
    build_from_corpus,
    check_texts,
    convert,
    measure_held_out,
    read_lines,
    write_corpus,
)
from lm.ngram.build_interpolated import interpolate, prune_to_size
from lm.ngram.recipe import Recipe
from lm.ngram.table import write_arpa
from lm.ngram.toolchain import Progress, tools

FINE_BITS = 16
"""Values of a part on the way: they are rounded to the settings' bits once, at the end."""


def build_recipe(recipe: Recipe, out: Path, progress: Progress, keep_arpa: bool = False) -> BuildReport:
    """Build `out` (a .binary trie) as a recipe says; each part holds one line in a hundred out."""
    parts, max_mb = recipe.parts, recipe.max_mb
    if len(parts) == 1 and max_mb is None:
        return build(parts[0].texts, out, parts[0].settings, progress, keep_arpa)
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
                add_spelled_lines(write_corpus(part.texts, folder, progress), part.settings.spelled_lines)
            )
            alone = replace(part.settings, quantize_bits=FINE_BITS, spelled_lines=0)
            reports.append(
                build_from_corpus(programs.lmplz, corpora[-1], folder / "part", alone, progress, False)
            )
        progress(f"merging {len(parts)} parts" if len(parts) > 1 else "weighing what to keep")
        model = interpolate(
            [
                (Path(report.path), read_lines(corpus.train), part.share)
                for report, corpus, part in zip(reports, corpora, parts, strict=True)
            ]
        )
        if max_mb is not None:
            model = prune_to_size(model, max_mb * 1e6)
        arpa = out.with_suffix(".arpa") if keep_arpa else Path(scratch) / "model.arpa"
        progress("writing")
        write_arpa(arpa, model.levels, model.probs, model.words)
        convert(arpa, out, settings, progress)
        return BuildReport(
            path=str(out),
            words=sum(report.words for report in reports),
            lines=sum(report.lines for report in reports),
            vocabulary=len(model.words),
            ngrams=tuple(len(level.words) for level in model.levels),
            size_bytes=out.stat().st_size,
            seconds=time.perf_counter() - started,
            held_out=measure_held_out(out, corpora),
            settings=settings,
        )
