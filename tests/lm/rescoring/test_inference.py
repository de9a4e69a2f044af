"""The Transformer-XL in numpy: a tree of readings says what PyTorch says of each reading by itself."""

import math
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors import safe_open
from safetensors.numpy import load_file, save_file

from lm.errors import LanguageError
from lm.rescoring.n_best import open_rescorer, score_sentences
from lm.rescoring.transformer_xl.config import TransformerConfig
from lm.rescoring.transformer_xl.inference import SLICE_WORDS, NumpyRescorer, WordTree
from lm.rescoring.transformer_xl.model import TransformerXL
from lm.rescoring.transformer_xl.storage import load_model, read_model, save_model
from lm.rescoring.transformer_xl.vocabulary import Vocabulary

WORDS = Vocabulary(["</s>", "<unk>", *(f"w{number}" for number in range(58))], unknown_kinds=20)
TEXTS = [
    "w1 w2 w3",
    "w1",
    "",
    "w1 w2 w50 w3",
    "w1 w2 w3 w4 w40",
    "w9 w2 w3",
    "w1 zebra w3",
    " ".join(["w1", "w30"] * 20),
]


@pytest.fixture(params=[(), (20,), (10, 30)])
def network(request: pytest.FixtureRequest) -> TransformerXL:
    torch.manual_seed(3)
    config = TransformerConfig(
        vocabulary=60, width=16, layers=2, heads=2, inner=32, segment=8, memory=64, cutoffs=request.param
    )
    made = TransformerXL(config).eval()
    with torch.no_grad():
        for weights in made.parameters():  # what begins as nothing would hide a mistake
            weights.add_(0.1 * torch.randn_like(weights))
    return made


def by_itself(network: TransformerXL, text: str, before: list[str]) -> float:
    """What PyTorch says of one text, word by word."""
    said = [number for line in before for number in (WORDS.end, *WORDS.encode(line))]
    line = [*said, WORDS.end, *WORDS.encode(text), WORDS.end]
    targets = torch.tensor([line[1:]])
    with torch.inference_mode():
        found, _ = network.log_probs(torch.tensor([line[:-1]]), targets, network.empty_memory(1))
    spoken = found[0, len(said) :]
    return float(spoken.sum()) - math.log(20) * int((targets[0, len(said) :] == WORDS.unknown).sum())


@pytest.mark.parametrize("before", [[], ["w5 w6", "w50 w7 zebra"]])
def test_a_tree_of_readings_says_what_each_by_itself_is_told(
    network: TransformerXL, before: list[str], tmp_path: Path
) -> None:
    save_model(tmp_path / "x.safetensors", network, WORDS)
    reader = NumpyRescorer(*read_model(tmp_path / "x.safetensors"), merge_after=99)
    *pauses, found = reader.score_in_slices(TEXTS, before)
    assert set(pauses) == {None}
    assert found == pytest.approx([by_itself(network, text, before) for text in TEXTS], abs=1e-3)
    assert score_sentences(reader, TEXTS[3:4], before) == pytest.approx(found[3:4], abs=1e-4)
    assert score_sentences(reader, []) == []


def test_a_word_sees_as_far_back_as_the_memory_reaches(tmp_path: Path) -> None:
    """Segment by segment, each word sees `memory` words before it and no more: as in training, so in the tree."""
    torch.manual_seed(4)
    config = TransformerConfig(
        vocabulary=60, width=16, layers=2, heads=2, inner=32, segment=8, memory=8, cutoffs=()
    )
    network = TransformerXL(config).eval()
    save_model(tmp_path / "x.safetensors", network, WORDS)
    text = " ".join(f"w{number % 50}" for number in range(39))
    line = [WORDS.end, *WORDS.encode(text), WORDS.end]
    memory, expected = network.empty_memory(1), 0.0
    with torch.inference_mode():
        for start in range(0, 40, 8):
            here, after = torch.tensor([line[start : start + 8]]), torch.tensor([line[start + 1 : start + 9]])
            found, memory = network.log_probs(here, after, memory)
            expected += float(found.sum())
    reader = NumpyRescorer.load(tmp_path / "x.safetensors")
    assert score_sentences(reader, [text])[0] == pytest.approx(expected, abs=1e-3)


def test_what_readings_share_is_read_once() -> None:
    tree = WordTree([0], memory=64, merge_after=4)
    first, second = tree.add([2, 3, 4], 0), tree.add([2, 3, 5], 0)
    assert first[:2] == second[:2] == [(0, 2), (1, 3)]
    assert (first[2:], second[2:]) == ([(2, 4), (3, 0)], [(2, 5), (4, 0)])
    words, ways = tree.as_arrays()
    assert words.tolist() == [0, 2, 3, 4, 5]
    assert ways[3, :5].tolist() == [3, 2, 1, 0, -1]
    assert ways[4, :5].tolist() == [4, 2, 1, 0, -1]


def test_readings_meet_again_after_four_words_that_are_the_same() -> None:
    tree = WordTree([0], memory=64, merge_after=4)
    first, second = tree.add([2, 3, 4, 5, 6, 7, 8], 0), tree.add([2, 9, 4, 5, 6, 7, 8], 0)
    assert [node for node, _ in first] == [0, 1, 2, 3, 4, 5, 6, 7]
    assert [node for node, _ in second] == [0, 1, 8, 9, 10, 11, 6, 7]
    words, ways = tree.as_arrays()
    assert words.tolist() == [0, 2, 3, 4, 5, 6, 7, 8, 9, 4, 5, 6]
    assert 2 in ways[7] and 8 not in ways[7]  # what follows sees the first reading's word


@pytest.mark.parametrize(
    "texts",
    [
        ["w1 w2 w3 w4 w5 w1 w2 w3 w4 w6 w7"] * 2,
        ["w1 w2 w3 w4 w5 w1 w2 w3 w4 w6 w7", "w1 w2 w3 w4 w5 w1 w2 w3 w4 w6 w8"],
        ["w5 w5 w5 w5 w5 w5 w5 w9"] * 2,
    ],
)
def test_who_repeats_himself_is_not_told_what_he_will_say(
    network: TransformerXL, tmp_path: Path, texts: list[str]
) -> None:
    save_model(tmp_path / "x.safetensors", network, WORDS)
    found = score_sentences(NumpyRescorer.load(tmp_path / "x.safetensors"), texts)
    assert found == pytest.approx([by_itself(network, text, []) for text in texts], abs=1e-3)


def test_a_spared_word_costs_nothing(network: TransformerXL, tmp_path: Path) -> None:
    save_model(tmp_path / "x.safetensors", network, WORDS)
    reader = NumpyRescorer.load(tmp_path / "x.safetensors")
    *_, dear = reader.score_in_slices(["w1 zebra w2"])
    *_, exempt_words = reader.score_in_slices(["w1 zebra w2"], exempt_words={"zebra", "w2"})
    assert dear is not None and exempt_words is not None
    assert exempt_words[0] > dear[0] + math.log(20)


def test_room_grows_with_the_words_and_not_with_their_square(tmp_path: Path) -> None:
    """Sixteen readings of 400 words, no two alike: 6,400 nodes, of which each knows its own way back and no more."""
    config = TransformerConfig(vocabulary=60, width=16, layers=1, heads=2, inner=32, memory=8, cutoffs=())
    save_model(tmp_path / "x.safetensors", TransformerXL(config), WORDS)
    reader = NumpyRescorer.load(tmp_path / "x.safetensors")
    draw = np.random.default_rng(0)
    texts = [" ".join(f"w{number}" for number in draw.integers(0, 50, 400)) for _ in range(16)]
    tracemalloc.start()
    score_sentences(reader, texts)
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert most < 20e6  # a table of every node with every other would have 41 million places


def test_a_long_list_is_read_in_slices(network: TransformerXL, tmp_path: Path) -> None:
    save_model(tmp_path / "x.safetensors", network, WORDS)
    texts = [f"w{number} w2 w3" for number in range(40)]
    *pauses, _ = NumpyRescorer.load(tmp_path / "x.safetensors").score_in_slices(texts)
    assert len(pauses) == 1 + math.ceil((1 + 3 * 40) / SLICE_WORDS)


def test_what_was_said_before_counts_and_unknown_words_cost_their_share(
    network: TransformerXL, tmp_path: Path
) -> None:
    save_model(tmp_path / "x.safetensors", network, WORDS)
    reader = open_rescorer(tmp_path / "x.safetensors")
    (alone,), (after,) = (score_sentences(reader, ["w1 w2"], before) for before in ((), ("w3 w4",)))
    assert alone != pytest.approx(after, abs=1e-4)
    assert score_sentences(reader, ["zebra"])[0] < -math.log(20)


def test_eight_bits_say_nearly_the_same_in_a_quarter_of_the_room(tmp_path: Path) -> None:
    torch.manual_seed(5)
    config = TransformerConfig(vocabulary=60, width=64, layers=2, heads=2, inner=256, cutoffs=(20,))
    network = TransformerXL(config).eval()
    whole, packed = tmp_path / "whole.safetensors", tmp_path / "packed.safetensors"
    save_model(whole, network, WORDS)
    save_model(packed, network, WORDS, eight_bits=True)
    assert packed.stat().st_size < 0.4 * whole.stat().st_size
    weights, *_ = read_model(whole)
    rounded, *_ = read_model(packed)
    assert weights.keys() == rounded.keys()
    for name, tensor in weights.items():
        assert rounded[name].dtype == np.float32
        largest = np.abs(tensor).max(axis=-1, keepdims=True, initial=1e-4)
        assert (np.abs(rounded[name] - tensor) <= largest / 200).all(), name
    found = score_sentences(NumpyRescorer.load(packed), TEXTS)
    assert found == pytest.approx(score_sentences(NumpyRescorer.load(whole), TEXTS), rel=0.02)
    load_model(packed)  # PyTorch reads it as well: to be measured, to be gone on from


def test_a_file_that_is_no_transformer_xl_is_refused(tmp_path: Path) -> None:
    (tmp_path / "x.safetensors").write_bytes(b"no")
    with pytest.raises(LanguageError, match="no safetensors"):
        NumpyRescorer.load(tmp_path / "x.safetensors")


@pytest.mark.parametrize(
    ("card", "lost", "reason"),
    [
        ({"config": "{}"}, None, "no card"),
        ({"config": '{"vocabulary": 60, "cutoffs": [], "colour": 1}'}, None, "no card"),
        ({"words": "</s> <unk> a"}, None, "a list of 3 words for 60"),
        ({}, "layers.0.wide.bias", "layers.0.wide.bias"),
    ],
)
def test_a_file_that_is_not_whole_is_refused_before_anything_is_ranked(
    tmp_path: Path, card: dict[str, str], lost: str | None, reason: str
) -> None:
    config = TransformerConfig(vocabulary=60, width=16, layers=1, heads=2, inner=32, cutoffs=(20,))
    network = TransformerXL(config)
    assert {name: tuple(w.shape) for name, w in network.state_dict().items()} == config.tensors()
    save_model(tmp_path / "whole.safetensors", network, WORDS)
    with safe_open(tmp_path / "whole.safetensors", framework="numpy") as file:
        metadata = {**file.metadata(), **card}
    kept = load_file(tmp_path / "whole.safetensors")
    kept.pop(lost or "", None)
    save_file(kept, tmp_path / "x.safetensors", metadata)
    with pytest.raises(LanguageError, match=reason):
        NumpyRescorer.load(tmp_path / "x.safetensors")
