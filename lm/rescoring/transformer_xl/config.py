"""The hyperparameters of a Transformer-XL and the shapes of its tensors."""

from dataclasses import dataclass
from itertools import pairwise

from lm.errors import LanguageError


@dataclass(frozen=True)
class TransformerConfig:
    """The hyperparameters. The field names are keys in the metadata of weight files."""

    vocabulary: int
    width: int = 256
    layers: int = 4
    heads: int = 4
    inner: int = 1024
    segment: int = 64
    memory: int = 64
    # The first word id of each cluster of rarer words. Empty: a full softmax.
    cutoffs: tuple[int, ...] = (4000,)
    # The embedding size of a cluster is that of the previous one divided by this.
    narrowing: int = 4
    dropout: float = 0.0

    def __post_init__(self) -> None:
        if min(self.vocabulary, self.width, self.layers, self.heads, self.inner, self.segment) < 1:
            raise LanguageError("vocabulary, width, layers, heads and segment must be at least 1")
        if self.width % self.heads or self.width % 2:
            raise LanguageError(f"a width of {self.width} cannot be divided into {self.heads} even heads")
        if list(self.cutoffs) != sorted(set(self.cutoffs)) or min(self.cutoffs, default=1) < 1:
            raise LanguageError(
                f"cutoffs must be positive and increase, for example 2000 10000; not {self.cutoffs}"
            )
        if not 0.0 <= self.dropout < 1.0:
            raise LanguageError(f"the dropout is {self.dropout}: expected 0 to less than 1")

    @property
    def clusters(self) -> tuple[tuple[int, int], ...]:
        """The range of word ids [first, end) of each cluster, frequent words first."""
        edges = (0, *(cutoff for cutoff in self.cutoffs if cutoff < self.vocabulary), self.vocabulary)
        return tuple(pairwise(edges))

    @property
    def widths(self) -> tuple[int, ...]:
        """The embedding size of each cluster."""
        return tuple(max(8, self.width // self.narrowing**cluster) for cluster in range(len(self.clusters)))

    def tensors(self) -> dict[str, tuple[int, ...]]:
        """The name and shape of every weight tensor."""
        width, rarer = self.width, self.widths[1:]
        each_head = (self.heads, 1, width // self.heads)
        norm = {"weight": (width,), "bias": (width,)}
        layer: dict[str, tuple[int, ...]] = {
            "attention.query.weight": (width, width),
            "attention.key_value.weight": (2 * width, width),
            "attention.position.weight": (width, width),
            "attention.out.weight": (width, width),
            "attention.content_bias": each_head,
            "attention.position_bias": each_head,
            "wide.weight": (self.inner, width),
            "wide.bias": (self.inner,),
            "narrow.weight": (width, self.inner),
            "narrow.bias": (width,),
            **{f"attention_norm.{name}": shape for name, shape in norm.items()},
            **{f"inner_norm.{name}": shape for name, shape in norm.items()},
        }
        shapes: dict[str, tuple[int, ...]] = {f"norm.{name}": shape for name, shape in norm.items()}
        for number in range(self.layers):
            shapes |= {f"layers.{number}.{name}": shape for name, shape in layer.items()}
        for cluster, ((first, end), narrow) in enumerate(zip(self.clusters, self.widths, strict=True)):
            shapes[f"words.tables.{cluster}"] = (end - first, narrow)
            shapes[f"words.biases.{cluster}"] = (end - first,)
        for cluster, narrow in enumerate(rarer):
            shapes[f"words.read.{cluster}.weight"] = (width, narrow)
            shapes[f"words.write.{cluster}.weight"] = (narrow, width)
        shapes["words.cluster_vectors"] = (len(rarer), width)
        shapes["words.cluster_biases"] = (len(rarer),)
        return shapes
