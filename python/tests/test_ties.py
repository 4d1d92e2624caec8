"""Tensors under two names: said when a model is opened, and left out on request."""

import gc
import warnings

import numpy as np
import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

import lockstep
from lockstep.export._ties import warn_of_ties


class LanguageModel(torch.nn.Module):
    def __init__(self, tied: bool = True) -> None:
        super().__init__()
        self.embed = torch.nn.Embedding(8, 4)
        self.norm = torch.nn.LayerNorm(4)
        self.lm_head = torch.nn.Linear(4, 8, bias=False)
        if tied:
            self.lm_head.weight = self.embed.weight


def test_a_publisher_of_a_tied_state_dict_warns_with_both_names_and_the_bytes():
    with pytest.warns(UserWarning, match='"lm_head.weight" is "embed.weight" .* 128 bytes.*without_ties'):
        with pytest.raises(lockstep.UnavailableError, match="/nowhere.sock"):
            lockstep.Publisher.in_place(
                LanguageModel().state_dict(), model="actor", socket="/nowhere.sock", connect_timeout=0.001
            )


def test_named_tensors_of_a_tied_state_dict_warn_too():
    with pytest.warns(UserWarning, match='"lm_head.weight" is "embed.weight"'):
        lockstep.named_tensors(LanguageModel().state_dict())


def test_without_ties_keeps_the_first_name_and_everything_else():
    model = LanguageModel()
    left = lockstep.without_ties(model.state_dict())
    assert list(left) == ["embed.weight", "norm.weight", "norm.bias"]
    assert left["embed.weight"].data_ptr() == model.embed.weight.data_ptr()


@pytest.mark.parametrize(
    "tensors",
    [
        LanguageModel(tied=False).state_dict(),
        {"first row": (rows := torch.zeros(2, 2))[0], "all": rows},  # one address, other shapes
        {"rows": (square := torch.zeros(2, 2)), "columns": square.t()},  # other strides
        {"words": (words := torch.zeros(2, dtype=torch.int32)), "floats": words.view(torch.float32)},
        {"none": torch.empty(0), "nor here": torch.empty(0)},
        {"shape": torch.empty(2, device="meta"), "alone": torch.empty(2, device="meta")},
        {"sparse": (sparse := torch.eye(2).to_sparse()), "again": sparse},
        {"a": np.zeros(2), "b": np.zeros(2)},
        [lockstep.TensorMeta("a", "F32", (2,)), lockstep.TensorMeta("b", "F32", (2,))],
    ],
    ids=["untied", "a part", "turned", "another dtype", "empty", "meta", "sparse", "numpy", "descriptions"],
)
def test_what_is_not_the_same_elements_in_the_same_memory_is_no_tie(tensors):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warn_of_ties(list(tensors.items()) if isinstance(tensors, dict) else tensors)


def test_arrays_under_two_names_are_a_tie_too():
    array = np.zeros(3, "f4")
    assert list(lockstep.without_ties({"a": array, "b": array, "c": array.copy()})) == ["a", "c"]


def apart() -> torch.nn.Module:
    """A model whose configuration ties the head, but `to_empty` gave each of the two its own memory."""
    shape = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
    config = AutoConfig.for_model("llama", vocab_size=32, tie_word_embeddings=True, **shape)
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config)
    return model.to_empty(device="cpu")


Publisher = lockstep.Publisher
MAKERS = {
    "from_module": lambda module, **options: Publisher.from_module(module, **options),
    "from_fsdp": lambda module, **options: Publisher.from_fsdp(torch.compile(module), **options),
    "from_tensors": lambda module, **options: Publisher.from_tensors(module.state_dict(), **options),
    "saved_tensors": lambda module, **options: Publisher.from_tensors(
        lambda: lockstep.saved_tensors(module), **options
    ),
    "in_place": lambda module, **options: Publisher.in_place(module.state_dict(), **options),
    "from_stream": lambda module, **options: Publisher.from_stream(module.named_parameters(), **options),
}


def tied_again(model):
    model.tie_weights()


def said_to_be_two(model):
    model.config.tie_word_embeddings = False


def one_memory(model):
    model.lm_head.weight = torch.nn.Parameter(model.model.embed_tokens.weight.data)


@pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS.keys())
def test_a_tied_head_that_came_apart_from_its_embedding_is_refused_by_name(make):
    refusal = '"lm_head.weight": .* ties it to "model.embed_tokens.weight".*tie_weights.*tie_word_embeddings=False'
    with pytest.raises(lockstep.BadDataError, match=refusal):
        make(apart(), model="actor", socket="/nowhere.sock", connect_timeout=0.001)


@pytest.mark.filterwarnings("ignore:tensor .lm_head.weight. is")  # by from_tensors
def test_a_model_that_nothing_reaches_any_more_refuses_no_other():
    model = apart()
    model.tie_weights()
    gone = apart()
    gone.__dict__["itself"] = gone
    gc.disable()
    try:
        del gone
        with pytest.raises(lockstep.UnavailableError, match="/nowhere.sock"):
            MAKERS["from_tensors"](model, model="actor", socket="/nowhere.sock", connect_timeout=0.001)
    finally:
        gc.enable()


@pytest.mark.filterwarnings("ignore:tensor .lm_head.weight. is")  # by from_tensors and its like
@pytest.mark.parametrize("mend", [tied_again, said_to_be_two, one_memory])
@pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS.keys())
def test_a_head_that_is_as_the_configuration_says_is_not_refused(make, mend):
    model = apart()
    mend(model)
    with pytest.raises(lockstep.UnavailableError, match="/nowhere.sock"):
        make(model, model="actor", socket="/nowhere.sock", connect_timeout=0.001)
