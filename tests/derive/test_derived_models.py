"""A trainer's derive=, its daemons and what an operator sees of it. The formats are test_formats.py's."""

import json

import pytest
import torch
from harness import MODEL, wait_until
from transformers import AutoModelForCausalLM, Qwen3Config

import lockstep

DERIVED = f"{MODEL}-fp8"
SIZES = {"hidden_size": 128, "intermediate_size": 256, "num_hidden_layers": 2, "vocab_size": 256}
HEADS = {"num_attention_heads": 2, "num_key_value_heads": 2, "head_dim": 64, "tie_word_embeddings": True}


def model(**overrides) -> torch.nn.Module:
    torch.manual_seed(0)
    return AutoModelForCausalLM.from_config(Qwen3Config(**SIZES, **HEADS, **overrides), dtype=torch.bfloat16)


def published(agent, module: torch.nn.Module, **options) -> lockstep.Publisher:
    options.setdefault("derive", {DERIVED: lockstep.Fp8Block()})
    return lockstep.Publisher.from_module(module, model=MODEL, socket=agent.socket, **options)


def test_transformers_loads_the_directory_of_a_derived_model(cluster):
    from transformers import FineGrainedFP8Config

    module = model()
    agent = cluster.agent()
    receiver = cluster.receiver(agent, models=(DERIVED,))
    with published(agent, module) as publisher:
        publisher.publish("one")
        wait_until(lambda: receiver.file(DERIVED).exists(), "the derived model is there")
        config = json.loads((receiver.published(DERIVED) / "config.json").read_text())
        assert config["architectures"] == ["Qwen3ForCausalLM"] and config["dtype"] == "bfloat16"
        assert receiver.model_status(DERIVED)["held_label"] == "one"
        loaded = AutoModelForCausalLM.from_pretrained(
            receiver.published(DERIVED), quantization_config=FineGrainedFP8Config(dequantize=True), dtype=torch.bfloat16
        )
    for (name, tensor), (_, whole) in zip(loaded.named_parameters(), module.named_parameters()):
        assert torch.allclose(tensor.float(), whole.float(), atol=float(whole.detach().abs().max()) / 16), name


def test_an_operator_sees_what_a_derived_model_is_made_of(cluster):
    agent = cluster.agent()
    with published(agent, model()) as publisher:
        assert "fp8-block of" in agent.ctl("status").stdout  # before its first version
        publisher.publish()
        agent.wait_for(1, DERIVED)
        source, derived = agent.model_status(MODEL), agent.model_status(DERIVED)
        assert (derived["derived_from"], derived["source_version"]) == (MODEL, 1)
        assert derived["source_digest"] == source["newest_digest"]
        verified = agent.ctl("verify", DERIVED)
        assert verified.returncode == 0 and f"derived again from model {MODEL}: equal" in verified.stdout
        assert agent.ask("verify", DERIVED)["wrong_tensors"] == []
        assert agent.ask("verify", MODEL)["derived_again_from"] == ""
        refused = agent.ctl("drop", DERIVED)
        assert refused.returncode != 0 and f"is derived from {MODEL}" in refused.stderr
        agent.kill()
        agent.start()
        wait_until(lambda: agent.model_status(DERIVED).get("source_version") == 1, "it is known again")
    assert agent.ctl("drop", MODEL).returncode == 0
    assert agent.ask("status")["models"] == []


def test_memory_for_derived_models_is_the_trainers_to_hear_of(cluster):
    module = model()
    source = sum(tensor.numel() for tensor in module.parameters()) * 2
    agent = cluster.agent(segment_dir=cluster.small_tmpfs("small", 1 + 2 * source // (1 << 20)))
    with published(agent, module, derive=None) as publisher:
        publisher.publish()
        agent.wait_for(1)
    with pytest.raises(lockstep.ResourceExhaustedError, match="its two slots, and those of what derives from it, need"):
        published(agent, module)
    agent.wait_for(1)  # the run before stays


def test_a_run_goes_on_where_only_the_configurations_place_is_another(cluster):
    agent = cluster.agent()
    with published(agent, model()) as publisher:
        publisher.publish()
        run = publisher.run
    agent.wait_for(1, DERIVED)
    moved = model(use_cache=False)
    moved.config._name_or_path = "/another/place"
    with published(agent, moved, run=run) as publisher:
        publisher.publish()
        agent.wait_for(2, DERIVED)


@pytest.mark.parametrize(
    "derive, sentence",
    [
        ({"q": lockstep.Fp8Block({"quantization_config": {}}, leave_out="lm_head")}, "leave_out is a list of names"),
        ({"q": lockstep.Quantised({"num_hidden_layers": 2})}, "config has no quantization_config"),
        ({"q": "fp8"}, "give a Quantised, such as lockstep.Fp8Block"),
        (["q"], "give a mapping of names to Quantised"),
        ({MODEL: lockstep.Fp8Block()}, "has the name of its source"),
        ({f"m{i}": lockstep.Fp8Block() for i in range(9)}, "1 to 8 names of models"),
        ({"q": lockstep.Fp8Block({"auto_map": {"a": "b"}})}, "which names code"),
        ({"q": lockstep.Fp8Block(leave_out=["re:.*"])}, "give exact names of modules"),
        ({"q": lockstep.Fp8Block(leave_out=["model.layers.0.self_attn.q_proj"])}, "leave out both, or none"),
    ],
    ids=["text", "config", "word", "list", "itself", "many", "code", "pattern", "part"],
)
def test_what_cannot_be_derived_is_refused_by_name(cluster, derive, sentence):
    with pytest.raises(lockstep.BadDataError) as refusal:
        published(cluster.agent(), model(), derive=derive)
    assert sentence in str(refusal.value)


def test_tensors_without_a_configuration_need_one(cluster):
    agent = cluster.agent()
    with pytest.raises(lockstep.BadDataError, match=r'give the model\'s config, as lockstep.Nvfp4\("DIRECTORY'):
        agent.publisher({"model.layers.0.a.weight": torch.zeros(2, 16)}, derive={"q": lockstep.Nvfp4()})
