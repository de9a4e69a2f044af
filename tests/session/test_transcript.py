"""The committed prefix only grows, finals start with it, and revisions are counted."""

from hypothesis import given
from hypothesis import strategies as st

from lm.hypothesis import Hypothesis, Word
from service.session.transcript import Transcript


def hypothesis(text: str, stable_words: int = 0) -> Hypothesis:
    words = tuple(Word(word, 10 * at, 10 * at + 5, 0.9) for at, word in enumerate(text.split()))
    return Hypothesis(words, stable_words, -1.0, -1.0, 0.0)


def texts(words: object) -> str:
    return " ".join(word.text for word in words)  # type: ignore[attr-defined]


def test_times_are_stream_times_within_the_audio() -> None:
    transcript = Transcript()
    partial_words = transcript.partial(hypothesis("one two"), first_sample=48_000, end_sample=52_000)
    assert partial_words is not None
    assert [(word.start_s, word.end_s) for word in partial_words[0]] == [(3.0, 3.1), (3.2, 3.25)]


def test_an_unchanged_partial_is_not_emitted() -> None:
    transcript = Transcript()
    assert transcript.partial(hypothesis("one"), 0, 160_000) is not None
    assert transcript.partial(hypothesis("one"), 0, 160_000) is None
    assert transcript.partial(hypothesis("one", stable_words=1), 0, 160_000) is not None


def test_committed_words_cannot_be_revised() -> None:
    transcript = Transcript()
    transcript.partial(hypothesis("one two three", stable_words=2), 0, 160_000)
    partial_words = transcript.partial(hypothesis("won two four"), 0, 160_000)
    assert partial_words is not None
    assert (texts(partial_words[0]), partial_words[1]) == ("one two four", 2)
    assert transcript.final([hypothesis("nothing else at all")], 0, 160_000)[0].text == "one two at all"


def test_revision_ratio_is_revised_words_over_final_words() -> None:
    transcript = Transcript()
    transcript.partial(hypothesis("a cat"), 0, 160_000)
    transcript.partial(hypothesis("a cap on"), 0, 160_000)
    transcript.final([hypothesis("a cap on it")], 0, 160_000)
    assert transcript.revision_ratio == 1 / 4
    transcript.final([hypothesis("fresh")], 0, 160_000)
    assert transcript.revision_ratio == 0


def test_a_growing_last_word_is_no_revision_and_a_word_may_be_revised_twice() -> None:
    transcript = Transcript()
    for text in ("con", "confer", "conference"):
        transcript.partial(hypothesis(text), 0, 160_000)
    transcript.final([hypothesis("conferences")], 0, 160_000)
    assert transcript.revision_ratio == 0
    transcript.partial(hypothesis("con"), 0, 160_000)
    transcript.partial(hypothesis("gone"), 0, 160_000)
    transcript.partial(hypothesis("on"), 0, 160_000)
    transcript.final([hypothesis("on")], 0, 160_000)
    assert transcript.revision_ratio == 2
    transcript.partial(hypothesis("a con"), 0, 160_000)
    transcript.partial(hypothesis("an con"), 0, 160_000)
    transcript.final([hypothesis("an con")], 0, 160_000)
    assert transcript.revision_ratio == 1


def test_no_hypotheses_give_an_empty_alternative() -> None:
    assert Transcript().final([], 0, 0)[0].text == ""


@given(
    st.lists(
        st.tuples(st.lists(st.sampled_from("abc"), max_size=6), st.integers(0, 6)), min_size=1, max_size=20
    )
)
def test_the_committed_prefix_only_grows(
    hypotheses: list[tuple[list[str], int]],
) -> None:
    transcript = Transcript()
    committed: list[str] = []
    for words, stable_words in hypotheses:
        partial_words = transcript.partial(
            hypothesis(" ".join(words), min(stable_words, len(words))), 0, 160_000
        )
        if partial_words is not None:
            now = [word.text for word in partial_words[0][: partial_words[1]]]
            assert now[: len(committed)] == committed
            committed = now
    final = transcript.final([hypothesis("a b")], 0, 160_000)[0]
    assert [word.text for word in final.words][: len(committed)] == committed
