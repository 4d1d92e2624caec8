"""What mbridge cannot load: GLM4, and Qwen2-MoE with dense layers. Megatron's distributed checkpointing is the witness.

lockstep.Importer fills the model; whole tensors put together by Megatron's own shard offsets are the checkpoint's; then
lockstep.Publisher publishes it, and so does a receiver hold them.
"""

import pytest
import sharded_state
import torch
import trainer
from hf_models import published_tensors
from ranks import Ranks
from topologies import topology_of
from transformers import AutoConfig

MIXED = {"mlp_only_layers": [1]}
CASES = [("glm4", {}, name) for name in ("tp2", "tp2pp2", "pp2vpp2", "uneven", "layout", "tp4", "cp2")]
CASES += [("qwen2_moe", MIXED, name) for name in ("tp2ep2", "ep2etp2", "tp2pp2", "pp2vpp2")]


@pytest.mark.parametrize("model, overrides, topology", CASES, ids=[f"{model}-{name}" for model, _, name in CASES])
def test_import_and_export_agree_with_megatrons_own_shard_offsets(cluster, checkpoints, model, overrides, topology):
    first = checkpoints.get(model, seed=1, **overrides)
    second = checkpoints.get(model, seed=2, **overrides)
    hf = AutoConfig.from_pretrained(first)
    agent = cluster.agent()
    receiver = cluster.receiver(agent)
    with Ranks(topology_of(topology)) as ranks:
        ranks.call(trainer.build, first)
        ranks.call(trainer.load_by_lockstep, first)
        ranks.call(trainer.open_exporter, agent.socket, "actor")
        for version, checkpoint in enumerate((first, second), start=1):
            ranks.call(trainer.load_by_lockstep, checkpoint)
            tensors = published_tensors(checkpoint)
            found = ranks.call(sharded_state.shards)
            assert_equal(sharded_state.huggingface_tensors(sharded_state.whole_tensors(found), hf), tensors)
            ranks.call(trainer.publish, version)
            receiver.wait_for(tensors)


def assert_equal(found: "dict[str, torch.Tensor]", expected: "dict[str, torch.Tensor]") -> None:
    assert found.keys() == expected.keys()
    for name, tensor in expected.items():
        assert torch.equal(found[name], tensor), name
