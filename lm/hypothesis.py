"""What the search says: words with frames and confidences, and how much of it is settled. Values only."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Word:
    """One word. Frames are outputs of the network (20 ms each) since the utterance's first push."""

    text: str
    first_frame: int
    end_frame: int
    confidence: float


@dataclass(frozen=True, slots=True)
class Hypothesis:
    """One reading of an utterance so far.

    `stable_words` leading words are shared by every reading still alive and can no longer change. `score` is
    what the search ranks by (natural log, everything weighted and added); `acoustic_score` is the natural log of
    the acoustic probability alone; `language_score` is KenLM's own total, log10, unweighted.
    """

    words: tuple[Word, ...]
    stable_words: int
    score: float
    acoustic_score: float
    language_score: float

    @property
    def text(self) -> str:
        return " ".join(word.text for word in self.words)
