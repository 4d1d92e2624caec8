"""Megatron's options that change what its parameters hold, or when: made right, or refused by name."""

import pytest
import torch
import trainer
from hf_models import MODELS
from megatron.core.distributed import DistributedDataParallel, DistributedDataParallelConfig
from megatron_models import megatron_on_cpu
from ranks import Ranks
from topologies import Topology

import lockstep


def set_option(rank, name, value):
    setattr(rank.chunks[0].config, name, value)


def set_tie(rank, tied):
    rank.hf.tie_word_embeddings = tied


def wrap_with_overlapped_gather(rank):
    """Megatron's DDP with a distributed optimizer that gathers parameters only when the next forward pass needs them."""
    config = DistributedDataParallelConfig(
        use_distributed_optimizer=True, overlap_param_gather=True, overlap_grad_reduce=True
    )
    with megatron_on_cpu():
        rank.chunks = [DistributedDataParallel(rank.chunks[0].config, config, rank.chunks[0])]


def step_of_own_slice(rank, value):
    """What the optimizer's step leaves: this rank's slice of each bucket is new, the other's is not."""
    for buffer in rank.chunks[0].buffers:
        for bucket in buffer.buckets:
            mine = bucket.param_data.numel() // 2
            bucket.param_data[rank.number * mine : (rank.number + 1) * mine].fill_(value)


def publish_on_cpu(rank, version):
    with megatron_on_cpu():
        trainer.publish(rank, version)


def test_parameters_that_are_still_to_be_gathered_are_gathered_first(cluster, checkpoints):
    checkpoint = checkpoints.get("llama")
    agent = cluster.agent()
    receiver = cluster.receiver(agent)
    with Ranks(Topology(dp=2)) as ranks:
        ranks.call(trainer.build, checkpoint)
        ranks.call(trainer.load_by_lockstep, checkpoint)
        ranks.call(wrap_with_overlapped_gather)
        ranks.call(trainer.open_exporter, agent.socket, "actor")
        for version in (1, 2):
            ranks.call(step_of_own_slice, float(version))
            ranks.call(publish_on_cpu, version)
            shapes = {meta.name: meta.shape for meta, _ in lockstep.tensors_meta(checkpoint / "config.json")}
            expected = {name: torch.full(shape, float(version), dtype=torch.bfloat16) for name, shape in shapes.items()}
            receiver.wait_for(expected)


@pytest.mark.parametrize(
    "option, value",
    [("layernorm_zero_centered_gamma", True), ("moe_mlp_glu_interleave_size", 8)],
)
def test_an_option_that_makes_other_weights_is_refused_by_name(cluster, checkpoints, option, value):
    with Ranks(Topology()) as ranks:
        ranks.call(trainer.build, checkpoints.get("llama"))
        ranks.call(set_option, option, value)
        [(kind, text)] = ranks.call(trainer.refusal, trainer.open_exporter, cluster.directory / "none", "actor")
    assert kind == "BadDataError" and option in text


@pytest.mark.parametrize("model", MODELS)
def test_rotation_is_refused_where_it_is_not_that_of_the_family(checkpoints, model):
    with Ranks(Topology()) as ranks:
        ranks.call(trainer.build, checkpoints.get(model))
        ranks.call(set_option, "rotary_interleaved", model != "glm4")
        [(kind, text)] = ranks.call(trainer.refusal, trainer.open_exporter, "/nowhere", "actor")
    assert kind == "BadDataError" and f"rotates {'neighbours' if model == 'glm4' else 'halves'}" in text


@pytest.mark.parametrize("model, tied", [("llama", True), ("qwen2", False)])
def test_a_head_that_is_tied_on_one_side_only_is_refused(cluster, checkpoints, model, tied):
    with Ranks(Topology()) as ranks:
        ranks.call(trainer.build, checkpoints.get(model))
        ranks.call(set_tie, tied)
        [(kind, text)] = ranks.call(trainer.refusal, trainer.open_exporter, cluster.directory / "none", "actor")
    assert kind == "BadDataError" and "tie_word_embeddings" in text and "share_embeddings_and_output_weights" in text
    assert not tied or '"output_layer.weight": ' in text and '"embedding.word_embeddings.weight"' in text
