"""The shape of a Transformer-XL."""

from dataclasses import dataclass
from itertools import pairwise

from lm.errors import LanguageError


@dataclass(frozen=True)
class TransformerConfig:
    """The shape of a network."""

    vocabulary: int
    width: int = 256
    layers: int = 4
    heads: int = 4
    inner: int = 1024
    segment: int = 64
    memory: int = 64
    # Where the clusters of rarer words begin; empty for one plain softmax over a small vocabulary.
    cutoffs: tuple[int, ...] = (4000,)
    # A cluster's vectors are this many times narrower than those of the cluster before.
    narrowing: int = 4
    dropout: float = 0.0

    def __post_init__(self) -> None:
        if min(self.vocabulary, self.width, self.layers, self.heads, self.inner, self.segment) < 1:
            raise LanguageError("vocabulary, width, layers, heads and segment must be at least 1")
        if self.width % self.heads or self.width % 2:
            raise LanguageError(f"a width of {self.width} does not split into {self.heads} even heads")
        if list(self.cutoffs) != sorted(set(self.cutoffs)) or min(self.cutoffs, default=1) < 1:
            raise LanguageError(f"cutoffs must rise from 1 on, for example 2000 10000; not {self.cutoffs}")
        if not 0.0 <= self.dropout < 1.0:
            raise LanguageError(f"a dropout of {self.dropout}: expected 0 to less than 1")

    @property
    def clusters(self) -> tuple[tuple[int, int], ...]:
        """First and end word number of each cluster, the frequent words first."""
        edges = (0, *(cutoff for cutoff in self.cutoffs if cutoff < self.vocabulary), self.vocabulary)
        return tuple(pairwise(edges))
