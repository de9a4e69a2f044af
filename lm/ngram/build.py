"""Text to n-gram language model: normal lines -> lmplz -> ARPA -> KenLM trie, and what such a model measures.

The programs come from toolchain.py; adaptation of a finished model to somebody's own text is in adapting.py.
"""

import math
import shutil
import subprocess
import tempfile
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from acoustic.files import replacing_file
from lm import PRETRAINED
from lm.errors import LanguageError
from lm.ngram.toolchain import MAX_ORDER, Progress, tools
from lm.text.corpus import is_held_out, normal_lines
from lm.text.spelled_letters import spelled_lines

LINES_PER_REPORT = 1_000_000


@dataclass(frozen=True)
class BuildSettings:
    """How a model is built from text."""

    order: int = 4
    # An order each: n-grams seen this often or less are left out; the last number goes for all higher orders.
    prune: tuple[int, ...] = (0, 0, 1, 2)
    # Words seen less often become the unknown word.
    minimum_count: int = 1
    quantize_bits: int = 8
    pointer_bits: int = 22
    # So many lines of spelled words, codes and numbers are learned from besides (lm/text/spelled_letters.py).
    spelled_lines: int = 0

    def __post_init__(self) -> None:
        if not 2 <= self.order <= MAX_ORDER:
            raise LanguageError(f"the order must lie between 2 and {MAX_ORDER}, not {self.order}")
        if not self.prune or self.prune[0] != 0 or list(self.prune) != sorted(self.prune):
            given = " ".join(map(str, self.prune))
            raise LanguageError(f"pruning must start with 0 and not fall, for example 0 0 1 2; not {given!r}")
        if len(self.prune) > self.order:
            raise LanguageError(
                f"{len(self.prune)} pruning thresholds for an order of {self.order}: one an order"
            )
        if self.spelled_lines < 0:
            raise LanguageError(f"{self.spelled_lines} spelled lines: expected 0 or more")


@dataclass(frozen=True)
class Perplexity:
    """How surprised a model is by a text: with its unknown words, and without them."""

    words: int
    lines: int
    unknown: int
    perplexity: float
    perplexity_known: float


@dataclass(frozen=True)
class BuildReport:
    """What came out of a build."""

    path: str
    words: int
    lines: int
    vocabulary: int
    ngrams: tuple[int, ...]
    size_bytes: int
    seconds: float
    held_out: Perplexity | None
    settings: BuildSettings = field(default_factory=BuildSettings)

    def as_json(self) -> dict[str, Any]:
        """Plain values for --json."""
        return asdict(self)


def build(
    texts: Sequence[Path],
    out: Path,
    settings: BuildSettings,
    progress: Progress,
    keep_arpa: bool = False,
) -> BuildReport:
    """Build `out` (a .binary trie) from text files, holding one line in a hundred out to measure on."""
    return build_several(texts, {out: settings}, progress, keep_arpa)[0]


def build_several(
    texts: Sequence[Path], wanted: dict[Path, BuildSettings], progress: Progress, keep_arpa: bool = False
) -> list[BuildReport]:
    """The same text as several models, for instance pruned more and less; the text is read once."""
    check_texts(texts)
    programs = tools(progress)
    folder = next(iter(wanted)).parent
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="silica-lm-", dir=folder) as scratch:
        begun = time.perf_counter()
        corpus = write_corpus(texts, Path(scratch), progress)
        reading_s = time.perf_counter() - begun
        reports = []
        for out, settings in wanted.items():
            report = build_from_corpus(programs.lmplz, corpus, out, settings, progress, keep_arpa)
            measured = measure_held_out(Path(report.path), [corpus])
            reports.append(replace(report, seconds=report.seconds + reading_s, held_out=measured))
    return reports


def check_texts(texts: Sequence[Path]) -> None:
    """Whether there is any and all are there: said before the builder is compiled, which takes minutes once."""
    if not texts:
        raise LanguageError("there is no text to build from; name a file or a recipe")
    for path in texts:
        if not path.is_file():
            raise LanguageError(f"there is no text file {path}")


def build_from_corpus(
    lmplz: Path, corpus: "Corpus", out: Path, settings: BuildSettings, progress: Progress, keep_arpa: bool
) -> BuildReport:
    """A corpus that is written down already as one model, not yet measured."""
    started = time.perf_counter()
    if out.suffix != ".binary":
        out = out.with_name(out.name + ".binary")
    corpus = add_spelled_lines(corpus, settings.spelled_lines)
    vocabulary = {word for word, count in corpus.counts.items() if count >= settings.minimum_count}
    work = corpus.train.parent
    known = work / "words.txt"
    known.write_text(" ".join(sorted(vocabulary)))
    words, pruned = sum(corpus.counts.values()), " ".join(map(str, settings.prune))
    progress(
        f"{words:,} words in {corpus.lines:,} lines, {len(corpus.counts):,} different; "
        f"counting n-grams of order {settings.order}, pruned {pruned}"
    )
    arpa = out.with_suffix(".arpa") if keep_arpa else work / "model.arpa"
    command = [str(lmplz), "--order", str(settings.order), "--prune", *pruned.split()]
    command += ["--discount_fallback", "--memory", "1G", "--temp_prefix", str(work / "sort")]
    command += ["--limit_vocab_file", str(known), "--text", str(corpus.train), "--arpa", str(arpa)]
    _program(command)
    progress("packing the trie")
    convert(arpa, out, settings, progress)
    return BuildReport(
        path=str(out),
        words=words,
        lines=corpus.lines,
        vocabulary=len(vocabulary),
        ngrams=arpa_counts(arpa),
        size_bytes=out.stat().st_size,
        seconds=time.perf_counter() - started,
        held_out=None,
        settings=settings,
    )


def convert(arpa: Path, out: Path, settings: BuildSettings, progress: Progress) -> None:
    """An ARPA file as KenLM trie: quantized, pointers compressed, words kept; what NGram.load memory-maps."""
    programs = tools(progress)
    bits = str(settings.quantize_bits)
    with tempfile.TemporaryDirectory(prefix="silica-trie-", dir=out.parent) as scratch:
        command = [str(programs.build_binary), "-q", bits, "-b", bits, "-a", str(settings.pointer_bits)]
        with replacing_file(out) as partial:
            _program([*command, "-T", f"{scratch}/sort", "trie", str(arpa), str(partial)])


def arpa_counts(arpa: Path) -> tuple[int, ...]:
    """How many n-grams of each order an ARPA file holds, from its head."""
    counts: list[int] = []
    with arpa.open(encoding="utf-8") as file:
        for line in file:
            if line.startswith("ngram "):
                counts.append(int(line.split("=")[1]))
            elif counts:
                break
    return tuple(counts)


def perplexity(model: Path, lines: Iterable[str]) -> Perplexity:
    """Perplexity of a KenLM file (trie or ARPA) on normal lines, sentence ends counted as words."""
    scorer = open_kenlm(model)
    words = count = unknown = 0
    total = total_known = 0.0
    for line in lines:
        count += 1
        for log10, _, is_unknown in scorer.full_scores(line):
            words += 1
            total += log10
            if is_unknown:
                unknown += 1
            else:
                total_known += log10
    if not words:
        raise LanguageError("there is no text to measure on; expected at least one line with a word")
    return Perplexity(
        words=words - count,
        lines=count,
        unknown=unknown,
        perplexity=math.pow(10.0, -total / words),
        perplexity_known=math.pow(10.0, -total_known / max(words - unknown, 1)),
    )


def open_kenlm(model: Path) -> Any:
    """kenlm's own reader on a file, with a clear error when there is none or it is something else."""
    import kenlm

    if not model.is_file():
        raise LanguageError(f"there is no language model {model}")
    try:
        return kenlm.Model(str(model))
    except (OSError, UnicodeDecodeError) as error:
        # KenLM quotes what it stumbled over: rubbish, where the file is some other binary.
        reason = str(error).strip().splitlines()[-1] if isinstance(error, OSError) else "it is no text"
        raise LanguageError(f"{model} is no KenLM file ({reason}); expected a .binary or .arpa") from None


@dataclass(frozen=True)
class Corpus:
    """Text in normal lines: what is learned from, what is measured on, and the words of the first."""

    train: Path
    held_out: Path
    counts: Counter[str]
    lines: int


def write_corpus(texts: Sequence[Path], folder: Path, progress: Progress) -> Corpus:
    """The texts in normal lines in this folder, one line in a hundred apart."""
    counts: Counter[str] = Counter()
    lines = 0
    corpus, held_out = folder / "corpus.txt", folder / "held-out.txt"
    with corpus.open("w") as train, held_out.open("w") as measured:
        for path in texts:
            progress(f"reading {path.name}")
            for line in normal_lines([path]):
                if is_held_out(line):
                    measured.write(line + "\n")
                else:
                    train.write(line + "\n")
                    counts.update(line.split())
                    lines += 1
                    if lines % LINES_PER_REPORT == 0:
                        progress(f"reading {path.name}: {lines:,} lines so far")
    if len(counts) < 3:
        raise LanguageError(
            f"the text holds {len(counts)} different words; a language model needs running text"
        )
    return Corpus(corpus, held_out, counts, lines)


def measure_held_out(model: Path, corpora: Iterable[Corpus]) -> Perplexity | None:
    """Perplexity on the lines that all of these hold out; None where there are none."""
    lines = [line for corpus in corpora for line in read_lines(corpus.held_out)]
    return perplexity(model, lines) if lines else None


def add_spelled_lines(corpus: Corpus, count: int) -> Corpus:
    """The corpus and so many lines in which its words are spelled: those that it has more than once, which are seldom
    misprints. What they say counts as text."""
    if not count:
        return corpus
    often = (word for word, seen in corpus.counts.items() if seen > 1)
    lines = list(spelled_lines(often, count))
    if not lines:
        raise LanguageError(
            "the text repeats no word of two to ten letters a to z: there is nothing to spell"
        )
    train = corpus.train.with_name("corpus-and-spelled.txt")
    shutil.copyfile(corpus.train, train)
    with train.open("a") as file:
        file.writelines(line + "\n" for line in lines)
    counts = corpus.counts + Counter(word for line in lines for word in line.split())
    return Corpus(train, corpus.held_out, counts, corpus.lines + len(lines))


def read_lines(path: Path) -> Iterable[str]:
    with path.open() as file:
        for line in file:
            yield line.rstrip("\n")


def _program(command: list[str]) -> None:
    result = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if result.returncode:
        words = "\n".join(result.stdout.strip().splitlines()[-8:])
        raise LanguageError(f"{Path(command[0]).name} failed ({result.returncode}):\n{words}")


def shipped_model() -> Path:
    """The file of the shipped language model."""
    found = sorted(PRETRAINED.glob("*.binary"))
    if not found:
        raise LanguageError("no language model is shipped (lm/pretrained/*.binary)")
    return found[0]


def describe(model: Path) -> dict[str, object]:
    """What `silica lm info` shows of a trie."""
    from lm.ngram.trie import NGram

    if not model.is_file():
        raise LanguageError(f"there is no language model {model}")
    ngram = NGram.load(model)
    return {
        "model": str(model),
        "size_bytes": model.stat().st_size,
        "order": ngram.order,
        "words": ngram.counts[0],
        "ngrams": list(ngram.counts),
    }
