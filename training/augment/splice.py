"""Cutting utterances and joining them: what a stream does to sentences."""

import torch
from torch import Tensor

from training.augment.draw import integers, uniform, valid

FADE_SAMPLES = 160


def cut(sound: Tensor, lengths: Tensor, start: Tensor, count: Tensor) -> tuple[Tensor, Tensor]:
    """Row i from sample start[i], count[i] samples long (less where the row ends before)."""
    start = start.to(sound.device)
    count = torch.minimum(count.to(sound.device), (lengths.to(sound.device) - start).clamp(min=0))
    longest = int(count.max()) if len(count) else 0
    index = start[:, None] + torch.arange(longest, device=sound.device)[None, :]
    taken = torch.gather(sound, 1, index.clamp(max=sound.shape[1] - 1))
    return taken * valid(count, longest), count.to(lengths.device, lengths.dtype)


def join(
    first: Tensor, first_lengths: Tensor, second: Tensor, second_lengths: Tensor, pause: Tensor
) -> tuple[Tensor, Tensor]:
    """Row i of `first`, pause[i] samples of silence, row i of `second`: two utterances said one after the
    other.
    """
    device = first.device
    offset = first_lengths.to(device) + pause.to(device)
    total = offset + second_lengths.to(device)
    samples = int(total.max()) if len(total) else 0
    position = torch.arange(samples, device=device)[None, :]
    front = torch.nn.functional.pad(first, (0, max(0, samples - first.shape[1])))[:, :samples]
    front = front * (position < first_lengths.to(device)[:, None])
    index = position - offset[:, None]
    inside = (index >= 0) & (index < second_lengths.to(device)[:, None])
    back = torch.gather(second, 1, index.clamp(0, second.shape[1] - 1)) * inside
    return front + back, total.to(first_lengths.device, first_lengths.dtype)


def scramble(
    sound: Tensor, lengths: Tensor, shortest: int, longest: int, generator: torch.Generator
) -> Tensor:
    """Every row's pieces, `shortest` to `longest` samples each, in another order, faded where they meet: a voice that
    says no words. For targets made from the sound itself.
    """
    index = torch.arange(sound.shape[1]).repeat(len(sound), 1)
    share = torch.ones(sound.shape)
    for row, length in enumerate(lengths.tolist()):
        spans = torch.randint(shortest, longest + 1, (length // shortest + 1,), generator=generator)
        starts = [0, *(end for end in spans.cumsum(0).tolist() if end + shortest <= length)]
        pieces = [torch.arange(*span) for span in zip(starts, [*starts[1:], length], strict=True)]
        order = torch.randperm(len(pieces), generator=generator).tolist()
        index[row, :length] = torch.cat([pieces[piece] for piece in order])
        edges = [torch.arange(len(pieces[piece])) for piece in order]
        apart = torch.cat([torch.minimum(edge, edge.flip(0)) for edge in edges])
        share[row, :length] = ((apart + 1) / FADE_SAMPLES).clamp(max=1.0)
    return torch.gather(sound, 1, index.to(sound.device)) * share.to(sound)


def cut_and_join(
    sound: Tensor, lengths: Tensor, generator: torch.Generator, *, shortest_share: float = 0.3
) -> tuple[Tensor, Tensor, Tensor]:
    """Replace the end of every row by a stretch of another row of the batch, with a short cross-fade.

    For targets made from the sound itself (a teacher's labels): transcripts do not survive it. Row i keeps
    between `shortest_share` and all of its own sound; lengths stay. Returns sound, lengths, and the sample
    where each was cut.
    """
    rows, samples = sound.shape
    device = sound.device
    own = lengths.to(device)
    keep = (uniform(rows, shortest_share, 1.0, generator).to(device) * own).long()
    partner = (torch.arange(rows, device=device) + 1 + integers(rows, rows - 1, generator).to(device)) % rows
    spare = (own[partner] - (own - keep)).clamp(min=0)
    start = (uniform(rows, 0.0, 1.0, generator).to(device) * (spare + 1)).long()
    position = torch.arange(samples, device=device)[None, :]
    index = start[:, None] + position - keep[:, None]
    inside = (index >= 0) & (index < own[partner][:, None])
    other = torch.gather(sound[partner], 1, index.clamp(0, samples - 1)) * inside
    share = ((position - keep[:, None]).to(sound.dtype) / FADE_SAMPLES).clamp(0.0, 1.0)
    return (sound * (1 - share) + other * share) * valid(own, samples), lengths, keep.to(lengths.device)
