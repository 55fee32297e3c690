"""The authors' released heads as heads of this study.

    hf download tuanh23/SigmoidHead-OLMo-2-0425-1B-SFT --local-dir released
    python -m old.quality.released released/model.safetensors allenai/OLMo-2-0425-1B-SFT olmo-2.safetensors

converts one; likewise SigmoidHead-TowerInstruct-7B-v0.2 for Unbabel/TowerInstruct-7B-v0.2. The result is the paper's full head with a bias
of zero, in half precision like every stored head: `QualityEstimator.from_language_model(<base model>, head="olmo-2.safetensors")` reads it.

Assumed, as the files could not be seen: one tensor (V, d) whose row v scores token v, p(v) = sigmoid(w_v h) with h the last hidden state
after the final norm, and no bias. So it is in the authors' code (TuAnh23/sigmoid-confidence, model_with_sigmoid_head.py), which saves the
state of one embedding; a variant there with a rescaling on top has more tensors and is refused. Neither the file's name nor the tensor's
matters.
"""

import sys
from pathlib import Path

import torch
from torch import Tensor

from old.pretrained import stored_tensors
from old.quality.head import SigmoidHead
from old.quality.language_models import LanguageModel


def head_of(tensors: dict[str, Tensor], lm: LanguageModel) -> SigmoidHead:
    """The full head of a language model whose weight is the one tensor (V, d) given. ValueError where it is not one, or does not fit."""
    if len(tensors) != 1:
        raise ValueError(f"a released head is one tensor, but there are {len(tensors)}: {', '.join(tensors) or 'none'}")
    (weight,) = tensors.values()
    if weight.shape != lm.unembedding.shape:
        raise ValueError(f"the head is {tuple(weight.shape)}, but the unembedding of {lm.name} is {tuple(lm.unembedding.shape)}")
    head = SigmoidHead(lm.unembedding)
    with torch.no_grad():
        head.weight.copy_(weight)
        head.bias.zero_()
    return head.eval()


def main(arguments: list[str]) -> int:
    """Command line: file of the released head, name of the base model, file to write. Returns the exit status."""
    if len(arguments) != 3:
        print("usage: python -m old.quality.released <file> <base model> <output.safetensors>", file=sys.stderr)
        return 2
    file, base, output = arguments
    try:
        tensors, lm = stored_tensors(Path(file)), LanguageModel.load(base)
        head_of(tensors, lm).save(output, lm.name)
    except (OSError, ValueError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
