"""The PyTorch network: segment recurrence, relative positions, adaptive softmax with tied embeddings.

Dai et al. 2019, "Transformer-XL: Attentive Language Models Beyond a Fixed-Length Context" (arXiv 1901.02860), with
layer normalization before each block (pre-norm). The adaptive softmax is that of Grave et al. 2017 (arXiv 1609.04309).
Module names are tensor names in weight files.
"""

import math

import torch
from torch import Tensor, nn
from torch.nn import functional

from lm.rescoring.transformer_xl.config import TransformerConfig

Memory = tuple[Tensor, ...]


class WordTables(nn.Module):
    """Word embeddings by cluster, tied between input (projection `read`) and softmax (projection `write`)."""

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        self.clusters = config.clusters
        self.width = config.width
        widths = config.widths
        self.tables = nn.ParameterList(
            nn.Parameter(torch.randn(end - first, width) / math.sqrt(width))
            for (first, end), width in zip(self.clusters, widths, strict=True)
        )
        self.read = nn.ModuleList(nn.Linear(width, config.width, bias=False) for width in widths[1:])
        self.write = nn.ModuleList(nn.Linear(config.width, width, bias=False) for width in widths[1:])
        self.biases = nn.ParameterList(nn.Parameter(torch.zeros(end - first)) for first, end in self.clusters)
        self.cluster_vectors = nn.Parameter(torch.zeros(len(self.clusters) - 1, config.width))
        self.cluster_biases = nn.Parameter(torch.zeros(len(self.clusters) - 1))

    def embed(self, words: Tensor) -> Tensor:
        """The embeddings of word ids of any shape."""
        flat = words.reshape(-1)
        vectors = functional.embedding(flat.clamp(max=self.clusters[0][1] - 1), self.tables[0])
        for cluster, (first, end) in enumerate(self.clusters[1:], start=1):
            at = ((flat >= first) & (flat < end)).nonzero().squeeze(1)
            if len(at):
                rare = self.read[cluster - 1](functional.embedding(flat[at] - first, self.tables[cluster]))
                vectors = vectors.index_copy(0, at, rare.to(vectors.dtype))
        return vectors.reshape(*words.shape, self.width)

    def log_probs(self, hidden: Tensor, targets: Tensor) -> Tensor:
        """The natural log-probability of each target given its hidden vector: [n, width], [n] -> [n]."""
        shortlist = self.clusters[0][1]
        head = functional.linear(hidden, torch.cat([self.tables[0], self.cluster_vectors]))
        head = functional.log_softmax(head.float() + torch.cat([self.biases[0], self.cluster_biases]), dim=-1)
        index = targets.clamp(max=shortlist - 1)
        for cluster, (first, end) in enumerate(self.clusters[1:], start=1):
            index = torch.where((targets >= first) & (targets < end), shortlist + cluster - 1, index)
        result = head.gather(1, index.unsqueeze(1)).squeeze(1)
        for cluster, (first, end) in enumerate(self.clusters[1:], start=1):
            at = ((targets >= first) & (targets < end)).nonzero().squeeze(1)
            if len(at):
                narrow = self.write[cluster - 1](hidden[at])
                tail = functional.linear(narrow, self.tables[cluster], self.biases[cluster])
                rest = -functional.cross_entropy(tail.float(), targets[at] - first, reduction="none")
                result = result.index_add(0, at, rest)
        return result


class Attention(nn.Module):
    """Multi-head attention over the memory and the segment, with relative positions (section 3.3)."""

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        self.heads, self.depth = config.heads, config.width // config.heads
        self.query = nn.Linear(config.width, config.width, bias=False)
        self.key_value = nn.Linear(config.width, 2 * config.width, bias=False)
        self.position = nn.Linear(config.width, config.width, bias=False)
        self.out = nn.Linear(config.width, config.width, bias=False)
        self.content_bias = nn.Parameter(torch.zeros(config.heads, 1, self.depth))
        self.position_bias = nn.Parameter(torch.zeros(config.heads, 1, self.depth))

    def forward(self, segment: Tensor, context: Tensor, positions: Tensor, mask: Tensor) -> Tensor:
        """`segment` [b, t, w] attends to `context` [b, k, w], whose end it is; `positions` [k, w]; `mask` [t, k] is
        true where attention is not allowed."""
        batch, steps, width = segment.shape
        keys = context.shape[1]
        query = self.query(segment).view(batch, steps, self.heads, self.depth).transpose(1, 2)
        key, value = (
            self.key_value(context).view(batch, keys, 2, self.heads, self.depth).permute(2, 0, 3, 1, 4)
        )
        position = self.position(positions).view(keys, self.heads, self.depth).permute(1, 2, 0)
        content = (query + self.content_bias) @ key.transpose(2, 3)
        distance = relative_shift((query + self.position_bias) @ position)
        scores = ((content + distance) / math.sqrt(self.depth)).masked_fill(mask, -torch.inf)
        mixed = scores.softmax(dim=-1) @ value
        return torch.as_tensor(self.out(mixed.transpose(1, 2).reshape(batch, steps, width)))


def relative_shift(scores: Tensor) -> Tensor:
    """Scores by distance [..., t, k] to scores by key: row i is shifted left by t-1-i (appendix B)."""
    *rest, steps, keys = scores.shape
    padded = torch.cat([scores.new_zeros(*rest, steps, 1), scores], dim=-1)
    return padded.view(*rest, keys + 1, steps)[..., 1:, :].reshape(*rest, steps, keys)


class Layer(nn.Module):
    """Attention and a feed-forward block, each with a residual connection."""

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        self.attention = Attention(config)
        self.attention_norm = nn.LayerNorm(config.width)
        self.inner_norm = nn.LayerNorm(config.width)
        self.wide = nn.Linear(config.width, config.inner)
        self.narrow = nn.Linear(config.inner, config.width)
        self.dropout = nn.Dropout(config.dropout)

    def forward(self, segment: Tensor, memory: Tensor, positions: Tensor, mask: Tensor) -> Tensor:
        context = self.attention_norm(torch.cat([memory, segment], dim=1))
        normalized = context[:, memory.shape[1] :]
        segment = segment + self.dropout(self.attention(normalized, context, positions, mask))
        inner = functional.gelu(self.wide(self.inner_norm(segment)), approximate="tanh")
        return torch.as_tensor(segment + self.dropout(self.narrow(inner)))


class TransformerXL(nn.Module):
    """Maps the words of a segment and the memory to hidden vectors and the next memory."""

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        self.config = config
        self.words = WordTables(config)
        self.layers = nn.ModuleList(Layer(config) for _ in range(config.layers))
        self.norm = nn.LayerNorm(config.width)
        self.dropout = nn.Dropout(config.dropout)
        for part in self.modules():
            if isinstance(part, nn.Linear):
                nn.init.normal_(
                    part.weight, std=0.02 if part.out_features > config.width else part.in_features**-0.5
                )

    def empty_memory(self, batch: int) -> Memory:
        """The memory at the start of a text."""
        return tuple(torch.zeros(batch, 0, self.config.width) for _ in self.layers)

    def forward(self, words: Tensor, memory: Memory) -> tuple[Tensor, Memory]:
        """[b, t] word ids -> hidden vectors [b, t, w] given the words up to and including each; next memory."""
        steps, memory_steps = words.shape[1], memory[0].shape[1]
        keys = memory_steps + steps
        positions = sinusoids(keys, self.config.width)
        mask = torch.ones(steps, keys, dtype=torch.bool).triu(1 + memory_steps)
        if memory_steps == self.config.memory:
            # Limit every word to the same attention span, whatever its position in the segment.
            mask = mask | torch.ones(steps, keys, dtype=torch.bool).tril(-1)
        hidden = self.dropout(self.words.embed(words))
        next_memory: list[Tensor] = []
        for layer, layer_memory in zip(self.layers, memory, strict=True):
            next_memory.append(torch.cat([layer_memory, hidden], dim=1)[:, -self.config.memory :].detach())
            hidden = layer(hidden, layer_memory, positions, mask)
        return self.norm(hidden), tuple(next_memory)

    def log_probs(self, words: Tensor, targets: Tensor, memory: Memory) -> tuple[Tensor, Memory]:
        """The natural log-probability of each target [b, t], given the words up to the same position."""
        hidden, memory = self(words, memory)
        result = self.words.log_probs(hidden.reshape(-1, self.config.width), targets.reshape(-1))
        return result.view(targets.shape), memory


def sinusoids(count: int, width: int) -> Tensor:
    """The sinusoidal encodings of the distances count-1 ... 0."""
    distance = torch.arange(count - 1, -1, -1.0).unsqueeze(1)
    frequency = 10000.0 ** (-torch.arange(0.0, width, 2.0) / width)
    return torch.cat([(distance * frequency).sin(), (distance * frequency).cos()], dim=1)[:, :width]
