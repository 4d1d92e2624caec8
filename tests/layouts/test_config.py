"""ExportConfig: a trainer's configuration as YAML or flags, its checks, and an exporter made by it."""

from typing import Any

import fsdp_trainer as trainer
import pytest
import torch
import yaml
from fsdp_trainer import Layout
from harness import MODEL
from ranks import Rank, Ranks
from test_fsdp import checkpoint_of
from topologies import Topology
from trainer import refusal

import lockstep
from lockstep import ExportConfig

YAML = """
trainer:
  total_epochs: 3
  engine:
    backend: megatron
    tensor_parallel_size: 4
    pipeline_parallel_size: 2
    expert_parallel_size: 8
    sequence_parallel: true
actor:
  optim: {lr: 1.0e-6}
  megatron:
    weight_export_bucket_bytes: 268435456
lockstep:
  socket: /run/other.sock
  model: actor-7b
  weight_export_threads: 4
  reconnect_timeout: 5
  skip_while_away: true
"""
FULL = ExportConfig("megatron", 4, 2, 8, 268435456, 4, "/run/other.sock", "actor-7b", 5, True)
FLAGS = [
    *("--backend", "megatron", "--tensor-parallel-size", "4", "--pipeline-parallel-size=2"),
    *("--expert-parallel-size", "8", "--weight-export-bucket-bytes", "268435456", "--weight-export-threads", "4"),
    *("--socket", "/run/other.sock", "--model", "actor-7b", "--reconnect-timeout", "5", "--skip-while-away"),
]


def engine(**values: Any) -> "dict[str, Any]":
    return {"trainer": {"engine": values}}


def test_the_same_configuration_from_a_yaml_file_flags_and_a_flat_dict():
    assert ExportConfig.from_dict(yaml.safe_load(YAML)) == FULL
    assert ExportConfig.from_flags(FLAGS) == FULL
    assert ExportConfig.from_dict(vars(FULL)) == FULL


def test_megatron_without_groups_is_told_to_make_them():
    for make in (
        lambda: lockstep.megatron([torch.nn.Linear(2, 2)], {"model_type": "llama"}),
        lambda: ExportConfig(backend="megatron").publisher(torch.nn.Linear(2, 2), {"model_type": "llama"}),
    ):
        with pytest.raises(lockstep.BadDataError, match="call megatron.core.parallel_state.initialize_model_parallel"):
            make()


def test_actor_may_be_inside_trainer():
    config = {"trainer": {"actor": {"megatron": {"weight_export_bucket_bytes": 1 << 20}}}}
    assert ExportConfig.from_dict(config).weight_export_bucket_bytes == 1 << 20


def test_what_is_not_said_has_a_default():
    for config in (ExportConfig.from_dict({}), ExportConfig.from_flags([]), ExportConfig()):
        assert (config.tensor_parallel_size, config.pipeline_parallel_size, config.expert_parallel_size) == (1, 1, 1)
        assert config.weight_export_bucket_bytes == 512 << 20
        assert config.socket == ""
        assert (config.reconnect_timeout, config.skip_while_away) == (60, False)


@pytest.mark.parametrize(
    "sizes, backend",
    [
        ({}, "fsdp"),
        ({"tensor_parallel_size": 8}, "fsdp"),
        ({"pipeline_parallel_size": 2}, "megatron"),
        ({"expert_parallel_size": 2}, "megatron"),
        ({"backend": "megatron"}, "megatron"),
        ({"backend": "fsdp", "tensor_parallel_size": 2}, "fsdp"),
    ],
)
def test_the_backend_follows_from_the_sizes_unless_it_is_said(sizes, backend):
    assert ExportConfig.from_dict(engine(**sizes)).backend == backend
    flags = [text for name, value in sizes.items() for text in ("--" + name.replace("_", "-"), str(value))]
    assert ExportConfig.from_flags(flags).backend == backend


def test_a_trainers_own_keys_and_flags_are_left_alone():
    config = engine(tensor_parallel_size=2, zero_stage=3)
    config.update({"actor": {"megatron": {"seed": 1}, "model": {"path": "x"}}, "data": {"model": 3}})
    assert ExportConfig.from_dict(config).tensor_parallel_size == 2
    flags = ["train.py", "--lr", "1e-6", "--tensor-parallel-size", "2", "--tensor", "7", "--verbose"]
    assert ExportConfig.from_flags(flags).tensor_parallel_size == 2


@pytest.mark.parametrize(
    "config, words",
    [
        (engine(tensor_parallel_size="4"), ["tensor_parallel_size", "'4'", "str"]),
        (engine(tensor_parallel_size=True), ["tensor_parallel_size", "bool"]),
        (engine(tensor_parallel_size=2.0), ["tensor_parallel_size", "float"]),
        (engine(pipeline_parallel_size=0), ["pipeline_parallel_size", "0"]),
        (engine(expert_parallel_size=-1), ["expert_parallel_size", "-1"]),
        (engine(backend="deepspeed"), ["backend", "deepspeed", "megatron", "fsdp"]),
        (engine(backend=3), ["backend", "3"]),
        (engine(backend="fsdp", pipeline_parallel_size=2), ["backend", "fsdp", "pipeline_parallel_size is 2"]),
        (engine(backend="fsdp", expert_parallel_size=4), ["backend", "fsdp", "expert_parallel_size is 4"]),
        ({"actor": {"megatron": {"weight_export_bucket_bytes": "512MB"}}}, ["weight_export_bucket_bytes", "512MB"]),
        ({"actor": {"megatron": {"weight_export_bucket_bytes": 0}}}, ["weight_export_bucket_bytes", "0"]),
        ({"lockstep": {"socket": 5}}, ["socket", "5"]),
        ({"lockstep": {"sokcet": "/run/x"}}, ["sokcet", "socket"]),
        ({"trainer": "fast"}, ["trainer", "fast"]),
        ({"trainer": {"engine": [1]}}, ["engine", "[1]"]),
    ],
)
def test_a_wrong_value_is_refused_by_name(config, words):
    with pytest.raises(lockstep.BadDataError) as raised:
        ExportConfig.from_dict(config)
    assert all(word in str(raised.value) for word in words), str(raised.value)


@pytest.mark.parametrize(
    "flags, words",
    [
        (["--tensor-parallel-size", "four"], ["tensor-parallel-size", "four"]),
        (["--tensor-parallel-size"], ["tensor-parallel-size"]),
        (["--pipeline-parallel-size", "0"], ["pipeline_parallel_size", "0"]),
        (["--backend", "fsdp", "--expert-parallel-size", "2"], ["backend", "expert_parallel_size"]),
    ],
)
def test_a_wrong_flag_is_refused_by_name(flags, words):
    with pytest.raises(lockstep.BadDataError) as raised:
        ExportConfig.from_flags(flags)
    assert all(word in str(raised.value) for word in words), str(raised.value)


def test_the_same_thing_said_twice_and_differently_is_refused():
    config = {**engine(tensor_parallel_size=2), "tensor_parallel_size": 4}
    with pytest.raises(lockstep.BadDataError) as raised:
        ExportConfig.from_dict(config)
    assert all(word in str(raised.value) for word in ("tensor_parallel_size", "2", "4")), str(raised.value)


# ---- to the end ------------------------------------------------------------------------------------------------------


def open_by_config(rank: Rank, config: "dict[str, Any]", **options: Any) -> None:
    rank.exporter = ExportConfig.from_dict(config).publisher(rank.model, **options)


def test_an_exporter_made_by_a_configuration_publishes(cluster, checkpoints):
    agent = cluster.agent()
    receiver = cluster.receiver(agent)
    config = {**engine(tensor_parallel_size=1), "lockstep": {"socket": str(agent.socket), "model": MODEL}}
    config["actor"] = {"megatron": {"weight_export_bucket_bytes": 1 << 20}}
    with Ranks(Topology(dp=2)) as ranks:
        ranks.call(trainer.build, checkpoint_of(checkpoints, "qwen3_moe"), Layout((2,), dtype=torch.float32))
        ranks.call(open_by_config, config, dtype=torch.bfloat16)
        for version in (1, 2):
            ranks.call(trainer.train)
            ranks.call(trainer.publish, version)
            receiver.wait_for(ranks.call(trainer.saved)[0])


def test_a_megatron_configuration_asks_for_the_models_own(checkpoints):
    with Ranks(Topology(dp=2)) as ranks:
        ranks.call(trainer.build, checkpoint_of(checkpoints, "qwen3"), Layout((2,)))
        for kind, message in ranks.call(refusal, open_by_config, engine(backend="megatron")):
            assert kind == "BadDataError" and "hf_config" in message
