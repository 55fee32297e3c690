"""A tree of tokens: each shared beginning once, and the same hidden states as text by text."""

import torch
from helpers import language_model

from old.quality import prefix_tree
from old.quality.training import hidden_states


def test_shared_beginnings_are_one_node():
    tree = prefix_tree.Tree()
    assert tree.add((5, 6, 7)) == [0, 1, 2] and tree.add((5, 6, 8, 7)) == [0, 1, 3, 4] and tree.add((5, 6)) == [0, 1]
    assert tree.depths == [0, 1, 2, 2, 3] and tree.parents == [-1, 0, 1, 1, 3]
    assert tree.ancestors()[4].tolist() == [True, True, False, True, True]


def test_states_are_those_of_each_text_by_itself():
    """Cut texts, different ends, different prompts, one of them the beginning of another; in the order given."""
    lm = language_model(vocab_size=320)
    prompts = ["the cat", "the cat", "return", "the cat", "", "return", "the"]
    outputs = ["is not on the mat", "is not on", "the value of 1", "is a number", "my_name", "the value of 2 3", "cat is not"]
    texts = lm.encode(prompts, outputs)
    torch.testing.assert_close(prefix_tree.hidden_states(lm, texts), hidden_states(lm, texts), atol=1e-5, rtol=1e-4)
