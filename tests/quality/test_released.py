"""The authors' released heads and model, converted: the numbers that their own code gives. Tiny
stand-ins in the layout of their files.
"""

import json
from pathlib import Path

import pytest
import standins
import torch
from safetensors.torch import save_file
from transformers import AutoTokenizer, BartForConditionalGeneration

from lib import released
from lib.length.models import LengthControlled
from lib.quality.estimator import QualityEstimator
from lib.quality.language_models import LanguageModel
from lib.study.models import stored_tensors


def test_converted_head_scores_as_the_authors_do(tmp_path):
    """sigmoid(h W^T) at every output token; bound to its base."""
    base = str(standins.olmo2(tmp_path / "base"))
    weight = torch.randn(standins.VOCABULARY, 32, generator=torch.Generator().manual_seed(0)) / 6
    torch.save({"weight": weight.bfloat16()}, tmp_path / "pytorch_model.bin")
    released.main(str(tmp_path / "pytorch_model.bin"), str(tmp_path / "out.safetensors"), base)
    estimator = QualityEstimator.from_language_model(base, tmp_path / "out.safetensors")
    prompts, outputs = ["the list is", "Return"], ["not empty", "the number 10"]
    texts = estimator.lm.encode(prompts, outputs)
    gold = torch.tensor([token for text in texts for token in text.output])
    states = estimator.lm.hidden_states(texts)
    theirs = torch.sigmoid(states @ weight.bfloat16().float().T).gather(1, gold[:, None])[:, 0]
    ours = torch.tensor(estimator.score(prompts, outputs)["sigmoid"].to_numpy())
    torch.testing.assert_close(ours.float(), theirs, atol=2e-3, rtol=0)  # stored in half precision
    assert estimator.head.rank is None and not estimator.head.bias.any()


@pytest.mark.parametrize(
    "tensors", [{"a": torch.ones(800, 32), "b": torch.ones(1)}, {"w": torch.ones(799, 32)}, {}]
)
def test_refuses_other_heads(tensors, tmp_path):
    lm = LanguageModel.load(str(standins.olmo2(tmp_path / "base")))
    with pytest.raises(ValueError, match=r"one tensor \(800, 32\) for base, but there are"):
        released.released_head(tensors, lm)


def their_embeddings(model, decoder_input_ids: torch.Tensor, target_len: list[int]):
    """What the authors' code hands to BART's decoder, which adds its positions once more:
    E + P + xi, cosines in even components.
    """
    width, steps = model.config.d_model, decoder_input_ids.shape[1]
    rates = [torch.cat([torch.linspace(0, 1, n), torch.ones(steps)])[:steps] for n in target_len]
    phase = width / 2 * torch.stack(rates)[:, :, None] * (2 * (torch.arange(width) // 2) / width)
    signal = torch.where(torch.arange(width) % 2 == 0, phase.cos(), phase.sin())
    decoder = model.get_decoder()
    positions = decoder.embed_positions.weight[decoder.embed_positions.offset :][:steps]
    return decoder.embed_tokens(decoder_input_ids) + positions + signal


@pytest.fixture
def release(tmp_path) -> Path:
    """A folder as the authors' `save_pretrained` leaves it: their own class, generation habits."""
    folder = standins.bart_large(tmp_path / "released", torch.float32)
    config = json.loads((folder / "config.json").read_text())
    config |= {"model_type": "prebart", "architectures": ["PreBartForConditionalGeneration"]}
    config["auto_map"] = {"AutoConfig": "configuration_prebart.PreBartConfig"}
    (folder / "config.json").write_text(json.dumps(config))
    return folder


@torch.no_grad()
def test_converted_model_is_theirs(release, tmp_path):
    """Teacher-forced logits equal those of stock BART with the authors' embeddings."""
    stock = standins.bart_large(tmp_path / "stock", torch.float32)
    theirs = BartForConditionalGeneration.from_pretrained(stock).eval()
    released.main(str(release), str(tmp_path / "prebart"))
    ours = LengthControlled.from_pretrained(str(tmp_path / "prebart")).eval()
    assert ours.config.length_signal["name"] == "pre-official"
    assert ours.generation_config.forced_bos_token_id == 0
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "prebart")
    source = tokenizer(["Return the items", "the list is empty"], return_tensors="pt", padding=True)
    ids = torch.randint(5, 300, (2, 9), generator=torch.Generator().manual_seed(0))
    inputs = {name: source[name] for name in ("input_ids", "attention_mask")}
    embeddings = their_embeddings(theirs, ids, [7, 12])
    expected = theirs(**inputs, decoder_inputs_embeds=embeddings).logits
    request = {"decoder_input_ids": ids, "target_length": torch.tensor([7, 12])}
    torch.testing.assert_close(ours(**inputs, **request).logits, expected, atol=1e-4, rtol=1e-4)
    without = theirs(**inputs, decoder_input_ids=ids).logits
    assert not torch.allclose(expected, without, atol=1e-2)


def test_refuses_another_checkpoint(release, tmp_path):
    """Weights that are missing, or that BART does not have: nothing is written."""
    file, lost = release / "model.safetensors", "model.decoder.layers.0.fc1.weight"
    tensors = stored_tensors(file)
    tensors["x"] = tensors.pop(lost)
    save_file(tensors, file, metadata={"format": "pt"})
    with pytest.raises(ValueError, match=rf"lacks \['{lost}'\], has \['x'\]"):
        released.main(str(release), str(tmp_path / "out"))
    assert not (tmp_path / "out").exists()
