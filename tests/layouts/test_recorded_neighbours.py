"""A bridge is recorded beside what else holds a Megatron model's memory, the distributed optimizer, and beside ranks that
fail: nothing of theirs is touched, and every rank has its weights afterwards."""

import itertools
import operator
import os
import re
import signal
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path

import mbridge_loader
import pytest
import torch
import torch.distributed as dist
import trainer
from harness import MODEL
from megatron.core.distributed import DistributedDataParallel, DistributedDataParallelConfig
from megatron.core.optimizer import OptimizerConfig, get_megatron_optimizer
from megatron_models import megatron_on_cpu, weights
from ranks import Rank, Ranks
from topologies import Topology, topology_of
from torch.overrides import TorchFunctionMode

import lockstep


def export(rank: Rank) -> "Iterator[tuple[str, torch.Tensor]]":
    with mbridge_loader.exported(rank.chunks, rank.hf, rank.topology) as tensors:
        yield from tensors


class CudaNames(TorchFunctionMode):
    """Lets Megatron's optimizer work on the CPU: it makes tensors on "cuda", and asks parameters for CUDA's type names."""

    def __torch_function__(self, function, types, arguments=(), options=None):
        options = dict(options or {})
        if options.get("device") == "cuda":
            options["device"] = "cpu"
        result = function(*arguments, **options)
        named = function is torch.Tensor.type and isinstance(result, str)
        return result.replace("torch.", "torch.cuda.") if named else result


def wrap(rank: Rank, overlap: bool) -> None:
    """Megatron's DDP and distributed optimizer: parameters are views of flat buffers, of which each rank updates a slice."""
    config = DistributedDataParallelConfig(
        use_distributed_optimizer=True, overlap_param_gather=overlap, overlap_grad_reduce=overlap
    )
    options = OptimizerConfig(
        optimizer="adam", lr=0.05, bf16=True, params_dtype=torch.bfloat16, use_distributed_optimizer=True
    )
    with megatron_on_cpu(), CudaNames():
        rank.chunks = [DistributedDataParallel(chunk.config, config, chunk) for chunk in rank.chunks]
        rank.optimizer = get_megatron_optimizer(options, rank.chunks, use_gloo_process_groups=False)


def step(rank: Rank, seed: int) -> None:
    """Gradients through autograd, which Megatron's hooks add to the flat buffers, and a step of the real optimizer."""
    for chunk in rank.chunks:
        chunk.zero_grad_buffer()
        generator = torch.Generator().manual_seed(seed)
        for parameter in chunk.parameters():
            (parameter.float() * torch.randn(parameter.shape, generator=generator)).sum().backward()
    with megatron_on_cpu(), CudaNames():
        for chunk in rank.chunks:
            chunk.finish_grad_sync()
        assert rank.optimizer.step()[0]


def tensors_of(what: object) -> "list[torch.Tensor]":
    """All that are inside lists and dictionaries."""
    if isinstance(what, torch.Tensor):
        return [what]
    inside = what.values() if isinstance(what, dict) else what if isinstance(what, (list, tuple)) else ()
    return [tensor for value in inside for tensor in tensors_of(value)]


def held_by_training(rank: Rank) -> "tuple[list[torch.Tensor], list[object]]":
    """The optimizer's and the buffers' tensors, and parameters with their gradients; and which hooks there are."""
    parameters = [parameter for chunk in rank.chunks for parameter in chunk.parameters()]
    buffers = [buffer for chunk in rank.chunks for buffer in (*chunk.buffers, *chunk.expert_parallel_buffers)]
    optimizers = rank.optimizer.chained_optimizers
    tensors = [
        *parameters,
        *(parameter.main_grad for parameter in parameters),
        *(tensor for buffer in buffers for tensor in (buffer.param_data, buffer.grad_data)),
        *(tensor for one in optimizers for tensor in tensors_of([one.model_float16_groups, one.shard_float16_groups])),
        *(tensor for one in optimizers for tensor in tensors_of([one.shard_fp32_from_float16_groups])),
        *(tensor for one in optimizers for tensor in tensors_of(list(one.optimizer.state.values()))),
    ]
    hooks = [
        *((parameter.grad, dict(parameter._backward_hooks or {})) for parameter in parameters),
        *(dict(module._forward_pre_hooks) for chunk in rank.chunks for module in chunk.modules()),
    ]
    return tensors, hooks


def synchronize(rank: Rank) -> None:
    with megatron_on_cpu():
        for chunk in rank.chunks:
            chunk.start_param_sync(force_sync=True)


def open_recorded(rank: Rank, socket) -> None:
    """Everything that trains is as it was, at the same place."""
    synchronize(rank)
    tensors, hooks = held_by_training(rank)
    before = [(tensor.data_ptr(), tensor.untyped_storage().data_ptr(), tensor.detach().clone()) for tensor in tensors]
    with megatron_on_cpu():
        rank.exporter = lockstep.Publisher.from_megatron(
            rank.chunks, recorded_from=lambda: export(rank), socket=socket, model=MODEL, call_timeout=30
        )
    now, hooks_now = held_by_training(rank)
    assert hooks_now == hooks and len(now) == len(tensors) and all(map(operator.is_, now, tensors))
    for tensor, (address, storage, value) in zip(tensors, before):
        assert (tensor.data_ptr(), tensor.untyped_storage().data_ptr()) == (address, storage)
        assert torch.equal(tensor.detach(), value)


def publish_step(rank: Rank, version: int) -> "tuple[bool, dict[str, torch.Tensor]]":
    """Publishes what a step leaves; whether parameters were not gathered before, and what mbridge exports when they are."""
    step(rank, version)
    left = [parameter.detach().clone() for chunk in rank.chunks for parameter in chunk.parameters()]
    with megatron_on_cpu():
        trainer.publish(rank, version)
    synchronize(rank)
    now = [parameter for chunk in rank.chunks for parameter in chunk.parameters()]
    return not all(map(torch.equal, left, now)), {name: tensor.clone() for name, tensor in export(rank)}


@pytest.mark.parametrize("overlap", [False, True], ids=["gathered", "overlap_param_gather"])
def test_a_distributed_optimizer_trains_on_after_recording_and_its_steps_are_published(cluster, checkpoints, overlap):
    checkpoint = checkpoints.get("qwen3_moe")
    agent = cluster.agent()
    receiver = cluster.receiver(agent)
    with Ranks(Topology(tp=2, dp=2, ep=2)) as ranks:
        ranks.call(trainer.build, checkpoint, te_names=True)
        ranks.call(trainer.load_by_mbridge, checkpoint)
        ranks.call(wrap, overlap)
        ranks.call(step, 1)
        ranks.call(open_recorded, agent.socket)
        for version in (2, 3):
            answers = ranks.call(publish_step, version)
            assert any(stale for stale, _ in answers) == overlap
            receiver.wait_for(answers[0][1])


# ---- ranks that fail while a bridge is recorded ----

LIMIT_S = 4  # of every wait for other ranks, once the failing run has begun
VICTIM, PASS, TENSOR = 3, 3, 5  # which rank fails, in which run of the exporter, and before which tensor


def fail_by_raising() -> None:
    raise ValueError("the bridge cannot convert it")


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def be_interrupted() -> None:
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell starts jobs in the background with it ignored
    os.kill(os.getpid(), signal.SIGINT)


def failing_exporter(rank: Rank, fail: "Callable[[], None]", tensor: "int | None"):
    """Fails on the victim before that tensor, where other ranks wait for it in the exporter's collectives; None: after all."""
    passes = itertools.count(1)

    def failing_export():
        now = next(passes) == PASS
        for group in dist.distributed_c10d._world.pg_map if now else ():
            dist.distributed_c10d._set_pg_timeout(timedelta(seconds=LIMIT_S), group)
        failing = now and rank.number == VICTIM
        for index, named in enumerate(export(rank)):
            if failing and index == tensor:
                fail()
            yield named
        if failing:
            fail()

    return failing_export


def record_and_fail(rank: Rank, folder: Path, fail: "Callable[[], None]", tensor: "int | None") -> "tuple[str, str]":
    """The error of an opening, and its text. The weights are the same afterwards, at the same place."""
    before = [(tensor, tensor.data_ptr(), tensor.clone()) for chunk in rank.chunks for _, tensor in weights(chunk)]
    ended = "", ""
    try:
        lockstep.Publisher.from_megatron(
            rank.chunks, recorded_from=failing_exporter(rank, fail, tensor), socket=folder / "none", model=MODEL
        )
    except BaseException as error:
        ended = type(error).__name__, str(error)
    for parameter, address, value in before:
        assert parameter.data_ptr() == address and torch.equal(parameter, value)
    return ended


def start_failing(ranks: Ranks, checkpoint: Path, *arguments: object) -> None:
    ranks.call(trainer.build, checkpoint, te_names=True)
    ranks.call(trainer.load_by_mbridge, checkpoint)
    ranks.start(record_and_fail, *arguments)


def test_an_exporter_that_raises_on_one_rank_after_its_collectives_is_named_on_every_rank(tmp_path, checkpoints):
    with Ranks(topology_of("tp2pp2")) as ranks:
        start_failing(ranks, checkpoints.get("llama"), tmp_path, fail_by_raising, None)
        *others, own = ranks.answers()
    assert own == ("ValueError", "the bridge cannot convert it")
    for kind, text in others:
        assert (
            kind == "AbortedError" and f"rank {VICTIM}" in text and "ValueError: the bridge cannot convert it" in text
        )


@pytest.mark.parametrize(
    "fail, own",
    [
        (fail_by_raising, ("ValueError", "the bridge cannot convert it")),
        (die, None),
        (be_interrupted, ("KeyboardInterrupt", "")),
    ],
    ids=["raised", "killed", "interrupted"],
)
def test_a_rank_lost_inside_the_exporters_collectives_ends_the_others_by_the_groups_timeout(
    tmp_path, checkpoints, fail, own
):
    with Ranks(topology_of("tp2pp2")) as ranks:
        start_failing(ranks, checkpoints.get("llama"), tmp_path, fail, TENSOR)
        others = ranks.answers(only=range(VICTIM))
        if own is None:
            ranks.processes[VICTIM].join()
            assert ranks.processes[VICTIM].exitcode == -signal.SIGKILL
        else:
            assert ranks.answers(only=[VICTIM]) == [own]
    for kind, text in others:
        assert kind == "RuntimeError" and re.search("(?i)time(d )?out|by peer", text), text
