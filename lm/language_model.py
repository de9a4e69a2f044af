"""A language model by name: the n-gram of the search, and the models that rescore its n-best list."""

from dataclasses import dataclass
from pathlib import Path

from lm.decoders import Decoder, DecoderKind, open_decoder
from lm.ngram.trie import NGram
from lm.rescoring.n_best import Rescoring, RescoringDecoder


@dataclass(frozen=True)
class LanguageModel:
    """The n-gram of the beam search and, optionally, the rescoring of finals."""

    ngram: NGram | None = None
    rescoring: Rescoring | None = None

    @classmethod
    def load(cls, name: str) -> "LanguageModel":
        """Open `none`, `shipped`, a KenLM trie, or a file that `silica lm rescore --out` wrote (.json)."""
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
        """A decoder of this kind. The beam search rescores finished utterances if the model has rescorers."""
        decoder = open_decoder(kind, alphabet, self.ngram)
        if self.rescoring is None or kind != "beam":
            return decoder
        return RescoringDecoder(decoder, self.rescoring)
