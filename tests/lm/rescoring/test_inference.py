"""Transformer-XL inference in numpy: tree evaluation gives the scores of the PyTorch network."""

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
        for weights in made.parameters():  # zero-initialized weights would hide errors
            weights.add_(0.1 * torch.randn_like(weights))
    return made


def pytorch_score(network: TransformerXL, text: str, context: list[str]) -> float:
    """The score of one text by the PyTorch network."""
    context_ids = [number for sentence in context for number in (WORDS.end, *WORDS.encode(sentence))]
    ids = [*context_ids, WORDS.end, *WORDS.encode(text), WORDS.end]
    targets = torch.tensor([ids[1:]])
    with torch.inference_mode():
        found, _ = network.log_probs(torch.tensor([ids[:-1]]), targets, network.empty_memory(1))
    log_probs = found[0, len(context_ids) :]
    return float(log_probs.sum()) - math.log(20) * int(
        (targets[0, len(context_ids) :] == WORDS.unknown).sum()
    )


@pytest.mark.parametrize("context", [[], ["w5 w6", "w50 w7 zebra"]])
def test_tree_scores_equal_pytorch_scores_of_single_texts(
    network: TransformerXL, context: list[str], tmp_path: Path
) -> None:
    save_model(tmp_path / "x.safetensors", network, WORDS)
    rescorer = NumpyRescorer(*read_model(tmp_path / "x.safetensors"), merge_after=99)
    *pauses, found = rescorer.score_in_slices(TEXTS, context)
    assert set(pauses) == {None}
    assert found == pytest.approx([pytorch_score(network, text, context) for text in TEXTS], abs=1e-3)
    assert score_sentences(rescorer, TEXTS[3:4], context) == pytest.approx(found[3:4], abs=1e-4)
    assert score_sentences(rescorer, []) == []


def test_the_attention_span_is_the_memory_length(tmp_path: Path) -> None:
    """Each word attends to `memory` words before it, in segments of training as in the tree."""
    torch.manual_seed(4)
    config = TransformerConfig(
        vocabulary=60, width=16, layers=2, heads=2, inner=32, segment=8, memory=8, cutoffs=()
    )
    network = TransformerXL(config).eval()
    save_model(tmp_path / "x.safetensors", network, WORDS)
    text = " ".join(f"w{number % 50}" for number in range(39))
    ids = [WORDS.end, *WORDS.encode(text), WORDS.end]
    memory, expected = network.empty_memory(1), 0.0
    with torch.inference_mode():
        for start in range(0, 40, 8):
            here, after = torch.tensor([ids[start : start + 8]]), torch.tensor([ids[start + 1 : start + 9]])
            found, memory = network.log_probs(here, after, memory)
            expected += float(found.sum())
    rescorer = NumpyRescorer.load(tmp_path / "x.safetensors")
    assert score_sentences(rescorer, [text])[0] == pytest.approx(expected, abs=1e-3)


def test_shared_prefixes_are_shared_nodes() -> None:
    tree = WordTree([0], memory=64, merge_after=4)
    first, second = tree.add([2, 3, 4], 0), tree.add([2, 3, 5], 0)
    assert first[:2] == second[:2] == [(0, 2), (1, 3)]
    assert (first[2:], second[2:]) == ([(2, 4), (3, 0)], [(2, 5), (4, 0)])
    words, ancestors = tree.as_arrays()
    assert words.tolist() == [0, 2, 3, 4, 5]
    assert ancestors[3, :5].tolist() == [3, 2, 1, 0, -1]
    assert ancestors[4, :5].tolist() == [4, 2, 1, 0, -1]


def test_hypotheses_merge_after_four_equal_words() -> None:
    tree = WordTree([0], memory=64, merge_after=4)
    first, second = tree.add([2, 3, 4, 5, 6, 7, 8], 0), tree.add([2, 9, 4, 5, 6, 7, 8], 0)
    assert [node for node, _ in first] == [0, 1, 2, 3, 4, 5, 6, 7]
    assert [node for node, _ in second] == [0, 1, 8, 9, 10, 11, 6, 7]
    words, ancestors = tree.as_arrays()
    assert words.tolist() == [0, 2, 3, 4, 5, 6, 7, 8, 9, 4, 5, 6]
    assert 2 in ancestors[7] and 8 not in ancestors[7]  # later words attend to the first hypothesis


@pytest.mark.parametrize(
    "texts",
    [
        ["w1 w2 w3 w4 w5 w1 w2 w3 w4 w6 w7"] * 2,
        ["w1 w2 w3 w4 w5 w1 w2 w3 w4 w6 w7", "w1 w2 w3 w4 w5 w1 w2 w3 w4 w6 w8"],
        ["w5 w5 w5 w5 w5 w5 w5 w9"] * 2,
    ],
)
def test_repeated_words_do_not_attend_to_later_words(
    network: TransformerXL, tmp_path: Path, texts: list[str]
) -> None:
    save_model(tmp_path / "x.safetensors", network, WORDS)
    found = score_sentences(NumpyRescorer.load(tmp_path / "x.safetensors"), texts)
    assert found == pytest.approx([pytorch_score(network, text, []) for text in texts], abs=1e-3)


def test_an_exempt_unknown_word_costs_nothing(network: TransformerXL, tmp_path: Path) -> None:
    save_model(tmp_path / "x.safetensors", network, WORDS)
    rescorer = NumpyRescorer.load(tmp_path / "x.safetensors")
    *_, penalized = rescorer.score_in_slices(["w1 zebra w2"])
    *_, exempt = rescorer.score_in_slices(["w1 zebra w2"], exempt_words={"zebra", "w2"})
    assert penalized is not None and exempt is not None
    assert exempt[0] > penalized[0] + math.log(20)


def test_memory_is_linear_in_the_number_of_words(tmp_path: Path) -> None:
    """16 different hypotheses of 400 words are 6,400 nodes, each with at most `memory` ancestors."""
    config = TransformerConfig(vocabulary=60, width=16, layers=1, heads=2, inner=32, memory=8, cutoffs=())
    save_model(tmp_path / "x.safetensors", TransformerXL(config), WORDS)
    rescorer = NumpyRescorer.load(tmp_path / "x.safetensors")
    rng = np.random.default_rng(0)
    texts = [" ".join(f"w{number}" for number in rng.integers(0, 50, 400)) for _ in range(16)]
    tracemalloc.start()
    score_sentences(rescorer, texts)
    _, peak_bytes = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak_bytes < 20e6  # a table of all pairs of nodes would have 41 million cells


def test_a_long_list_is_scored_in_slices(network: TransformerXL, tmp_path: Path) -> None:
    save_model(tmp_path / "x.safetensors", network, WORDS)
    texts = [f"w{number} w2 w3" for number in range(40)]
    *pauses, _ = NumpyRescorer.load(tmp_path / "x.safetensors").score_in_slices(texts)
    assert len(pauses) == 1 + math.ceil((1 + 3 * 40) / SLICE_WORDS)


def test_context_changes_scores_and_unknown_words_share_the_mass_of_unk(
    network: TransformerXL, tmp_path: Path
) -> None:
    save_model(tmp_path / "x.safetensors", network, WORDS)
    rescorer = open_rescorer(tmp_path / "x.safetensors")
    (alone,), (after,) = (score_sentences(rescorer, ["w1 w2"], context) for context in ((), ("w3 w4",)))
    assert alone != pytest.approx(after, abs=1e-4)
    assert score_sentences(rescorer, ["zebra"])[0] < -math.log(20)


def test_8_bit_weights_are_small_and_close_to_the_original(tmp_path: Path) -> None:
    torch.manual_seed(5)
    config = TransformerConfig(vocabulary=60, width=64, layers=2, heads=2, inner=256, cutoffs=(20,))
    network = TransformerXL(config).eval()
    full, packed = tmp_path / "full.safetensors", tmp_path / "packed.safetensors"
    save_model(full, network, WORDS)
    save_model(packed, network, WORDS, eight_bits=True)
    assert packed.stat().st_size < 0.4 * full.stat().st_size
    weights, *_ = read_model(full)
    rounded, *_ = read_model(packed)
    assert weights.keys() == rounded.keys()
    for name, tensor in weights.items():
        assert rounded[name].dtype == np.float32
        largest = np.abs(tensor).max(axis=-1, keepdims=True, initial=1e-4)
        assert (np.abs(rounded[name] - tensor) <= largest / 200).all(), name
    found = score_sentences(NumpyRescorer.load(packed), TEXTS)
    assert found == pytest.approx(score_sentences(NumpyRescorer.load(full), TEXTS), rel=0.02)
    load_model(packed)  # PyTorch reads 8-bit files as well


def test_a_file_that_is_not_safetensors_is_refused(tmp_path: Path) -> None:
    (tmp_path / "x.safetensors").write_bytes(b"no")
    with pytest.raises(LanguageError, match="not a safetensors"):
        NumpyRescorer.load(tmp_path / "x.safetensors")


@pytest.mark.parametrize(
    ("changed_metadata", "removed", "reason"),
    [
        ({"config": "{}"}, None, "no metadata"),
        ({"config": '{"vocabulary": 60, "cutoffs": [], "color": 1}'}, None, "no metadata"),
        ({"words": "</s> <unk> a"}, None, "3 words instead of 60"),
        ({}, "layers.0.wide.bias", "layers.0.wide.bias"),
    ],
)
def test_an_incomplete_file_is_refused(
    tmp_path: Path, changed_metadata: dict[str, str], removed: str | None, reason: str
) -> None:
    config = TransformerConfig(vocabulary=60, width=16, layers=1, heads=2, inner=32, cutoffs=(20,))
    network = TransformerXL(config)
    assert {name: tuple(w.shape) for name, w in network.state_dict().items()} == config.tensors()
    save_model(tmp_path / "full.safetensors", network, WORDS)
    with safe_open(tmp_path / "full.safetensors", framework="numpy") as file:
        metadata = {**file.metadata(), **changed_metadata}
    weights = load_file(tmp_path / "full.safetensors")
    weights.pop(removed or "", None)
    save_file(weights, tmp_path / "x.safetensors", metadata)
    with pytest.raises(LanguageError, match=reason):
        NumpyRescorer.load(tmp_path / "x.safetensors")
