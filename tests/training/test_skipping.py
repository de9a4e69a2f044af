"""Parts that rows pass over in training."""

import pytest
import torch
from torch import nn

from acoustic.config import published
from acoustic.network import build
from acoustic.network.layers import Layers
from training.errors import TrainingError
from training.skipping import Skipper, skip_parts


def test_each_row_passes_over_its_own_parts_and_the_mean_stays() -> None:
    torch.manual_seed(0)
    part = nn.Identity()
    part.register_forward_hook(Skipper(0.25))
    said = part(torch.ones(4000, 3, 2))
    assert said.unique().tolist() == pytest.approx([0.0, 4 / 3])
    assert (said == said[:, :1, :1]).all()
    assert float(said.mean()) == pytest.approx(1.0, abs=0.03)
    assert torch.equal(part.eval()(torch.ones(3, 3, 2)), torch.ones(3, 3, 2))


def test_deeper_parts_are_passed_over_more_often_and_none_outside_training() -> None:
    network = build(published["silica-attentive"])
    skip_parts(network, 0.2)
    shares = [
        hook.share
        for block in network.blocks
        if isinstance(block, Layers)
        for part in block.parts()
        for hook in part._forward_hooks.values()
    ]
    assert shares == sorted(shares) and len(shares) == 21
    assert shares[0] == pytest.approx(0.2 / 21) and shares[-1] == pytest.approx(0.2)
    features, frames = torch.randn(2, 64, 80), torch.tensor([80, 50])
    with torch.no_grad():
        first, second = (network.eval()(features, frames)[0] for _ in range(2))
    assert torch.equal(first, second)


def test_a_network_that_does_not_attend_says_so() -> None:
    with pytest.raises(
        TrainingError, match=r"model\.skip is 0\.1, and this network has no layers that attend"
    ):
        skip_parts(build(published["silica-small"]), 0.1)
