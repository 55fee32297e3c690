"""The authors' released heads and PRE-BART as files of this study.

    hf download tuanh23/SigmoidHead-OLMo-2-0425-1B-SFT --local-dir there
    python -m lib.released there/model.safetensors olmo.safetensors allenai/OLMo-2-0425-1B-SFT
    hf download Ivanhoe9/prebart-large-cnn --local-dir there
    python -m lib.released there prebart

From their code: a head is one tensor (V, d), no bias, p(v) = sigmoid(w_v h), h after the final
norm; PRE-BART adds its positions P twice, E + 2 P + xi: here once, so the stored table is doubled.
Assumed, the files could not be seen: M = d / 2, no prefix of the source. Not taken over, faults of
the code around it: noise at inference, no signal at the first token.
"""

import sys
from pathlib import Path

import torch
from torch import Tensor
from transformers import AutoTokenizer, BartConfig

from lib.length.control import plain_generation
from lib.length.models import LengthControlled
from lib.quality.language_models import LanguageModel
from lib.sigmoid_head import SigmoidHead
from lib.study.models import stored_tensors


def released_head(tensors: dict[str, Tensor], lm: LanguageModel) -> SigmoidHead:
    """The full head whose weight is the one tensor (V, d) given; ValueError where it is not one."""
    shapes = [tuple(tensor.shape) for tensor in tensors.values()]
    if shapes != [expected := tuple(lm.unembedding.shape)]:
        raise ValueError(f"a head is one tensor {expected} for {lm.name}, but there are: {shapes}")
    head = SigmoidHead(lm.unembedding)
    with torch.no_grad():
        head.weight.copy_(*tensors.values())
        head.bias.zero_()
    return head.eval()


def released_prebart(folder: Path):
    """The model of a downloaded folder, in float32. OSError or ValueError where it is another."""
    config = BartConfig.from_pretrained(folder)  # theirs is BART's under another name
    config.__dict__.pop("auto_map", None)  # to their own classes, which nothing here executes
    options = {"config": config, "output_loading_info": True}
    model, report = LengthControlled.from_pretrained(str(folder), "pre-official", **options)
    missing = sorted(set(report["missing_keys"]) - {"final_logits_bias"})
    if missing or report["unexpected_keys"]:
        raise ValueError(f"no such BART: lacks {missing}, has {sorted(report['unexpected_keys'])}")
    with torch.no_grad():
        model.get_decoder().embed_positions.weight.mul_(2)
    model.generation_config = plain_generation(model.generation_config)
    return model.eval()


def main(source: str, output: str, base: str | None = None) -> None:
    """Convert a head (with the name of its base model), or a folder with PRE-BART (without)."""
    if base is not None:
        lm = LanguageModel.load(base)
        released_head(stored_tensors(Path(source)), lm).save(output, lm.name)
        return
    model = released_prebart(Path(source))
    model.save_pretrained(output)
    AutoTokenizer.from_pretrained(source, config=model.config).save_pretrained(output)


if __name__ == "__main__":
    main(*sys.argv[1:])
