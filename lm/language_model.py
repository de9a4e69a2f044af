"""What is known of a language under one name: the n-gram of the search, and models that rank its readings again."""

from dataclasses import dataclass
from pathlib import Path

from lm.decoders import Decoder, DecoderKind, open_decoder
from lm.ngram.trie import NGram
from lm.rescoring.n_best import Rescoring, RescoringDecoder


@dataclass(frozen=True)
class LanguageModel:
    """A decoder's knowledge of words."""

    ngram: NGram | None = None
    rescoring: Rescoring | None = None

    @classmethod
    def load(cls, name: str) -> "LanguageModel":
        """`none`, `shipped`, a KenLM trie, or what `silica lm rescore --out` wrote (.json), which names a trie."""
        if name == "none":
            return cls()
        if name == "shipped":
            ngram = NGram.shipped()
            return cls(ngram, Rescoring.shipped() if ngram else None)
        if Path(name).suffix != ".json":
            return cls(NGram.load(name))
        rescoring = Rescoring.load(Path(name))
        search = rescoring.search_model
        return cls(NGram.shipped() if search == "shipped" else NGram.load(search), rescoring)

    def decoder(self, kind: DecoderKind, alphabet: str) -> Decoder:
        """A decoder of this kind; the beam search ranks again at the end of an utterance, if there is a way to."""
        decoder = open_decoder(kind, alphabet, self.ngram)
        if self.rescoring is None or kind != "beam":
            return decoder
        return RescoringDecoder(decoder, self.rescoring)
