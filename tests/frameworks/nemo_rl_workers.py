"""NeMo-RL's workers of policy and vLLM for tests, on the CPU: its synchronizer, its configuration and its workers' parts
that move weights are the real ones; the model is FSDP2's, what vLLM loads with is a stand-in."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import ray
import torch
import torch.distributed as dist
import transformers

transformers.__version__ = "5.11.0"  # NeMo-RL refuses newer ones for a patch of tokenizers, which are not used here

from nemo_rl.models.generation.vllm.checkpoint_engine import (  # noqa: E402
    VllmCheckpointEngineMixin,
    VllmCheckpointEngineRpcMixin,
)
from nemo_rl.models.policy.workers.checkpoint_engine import PolicyCheckpointEngineMixin  # noqa: E402
from nemo_rl.weight_sync.checkpoint_engine_config import checkpoint_engine_refit_config  # noqa: E402
from nemo_rl.weight_sync.checkpoint_engine_weight_synchronizer import CheckpointEngineWeightSynchronizer  # noqa: E402
from torch.distributed.fsdp import fully_shard  # noqa: E402
from transformers import AutoModelForCausalLM  # noqa: E402

import lockstep  # noqa: E402

TRANSPORT = "lockstep.integrations.nemo_rl:LockstepCheckpointEngine"
POLICY_RANKS, ROLLOUTS, BUCKET_BYTES = 2, 2, 50_000


class Policy(PolicyCheckpointEngineMixin):
    """A rank of the policy; every tensor is gathered by all of them."""

    def __init__(self, rank: int, store: str, checkpoint: str) -> None:
        dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=POLICY_RANKS)
        self.rank = rank
        self.model = AutoModelForCausalLM.from_pretrained(checkpoint, dtype=torch.bfloat16)
        self.optimizer = torch.optim.SGD(fully_shard(self.model).parameters(), lr=0.1)
        self.spoiled = False

    def _checkpoint_engine_weight_iterator(self, kv_scales: Any = None) -> Any:
        for number, (name, tensor) in enumerate(self.model.state_dict().items()):
            yield name + ".unknown" * (self.spoiled and number == 5), tensor.full_tensor()
        self.spoiled = False

    def train(self, spoiled: bool = False) -> None:
        tokens = torch.arange(7)[None] + self.rank
        self.model(input_ids=tokens, labels=tokens).loss.backward()
        self.optimizer.step()
        self.spoiled = spoiled

    def weights(self) -> "dict[str, torch.Tensor]":
        return {name: tensor.full_tensor() for name, tensor in self.model.state_dict().items()}


class PolicyOfShards(Policy):
    """As docs/frameworks/nemo_rl.md shows a worker class of one's own."""

    async def checkpoint_engine_rpc(self, checkpoint_method: str, method_kwargs: Any = None) -> Any:
        result = await super().checkpoint_engine_rpc(checkpoint_method, method_kwargs)
        if checkpoint_method == "init_checkpoint_engine":
            self.checkpoint_engine.publish_shards_of(lockstep.fsdp(self.model))
        return result


class Worker(VllmCheckpointEngineMixin):
    """What runs inside vLLM; it keeps what it is given."""

    def __init__(self) -> None:
        self.loaded: "dict[str, torch.Tensor]" = {}

    def _load_weights(self, batch: "list[tuple[str, torch.Tensor]]") -> None:
        assert len(batch) == 1 or sum(tensor.nbytes for _, tensor in batch) <= BUCKET_BYTES
        self.loaded |= {name: tensor.clone() for name, tensor in batch}

    def _maybe_process_fp8_kv_cache(self) -> None:
        pass


class Rollout(VllmCheckpointEngineRpcMixin):
    """A vLLM of one worker."""

    def __init__(self, store: str) -> None:
        dist.init_process_group("gloo", init_method=f"file://{store}", rank=0, world_size=1)
        torch.cuda.current_stream = lambda: SimpleNamespace(synchronize=lambda: None)
        torch.cuda.nvtx.range_push = torch.cuda.nvtx.range_pop = lambda *_: None
        self.worker = Worker()
        self.llm = SimpleNamespace(collective_rpc=lambda method, args: [getattr(self.worker, method)(*args)])

    def loaded(self) -> "dict[str, torch.Tensor]":
        return self.worker.loaded


class Group:
    """NeMo-RL's calls of a worker group."""

    def __init__(self, workers: "list[Any]") -> None:
        self.workers = workers

    def run_all_workers_single_data(self, method: str, run_rank_0_only_axes: Any = None, **options: Any) -> "list[Any]":
        return [getattr(worker, method).remote(**options) for worker in self.workers]

    def run_all_workers_multiple_data(
        self, method: str, method_args: "list[Any]", common_kwargs: "dict[str, Any]", run_rank_0_only_axes: Any = None
    ) -> "list[Any]":
        pairs = zip(self.workers, method_args)
        return [getattr(worker, method).remote(method_args=each, **common_kwargs) for worker, each in pairs]


class Job:
    """A policy, rollouts, and NeMo-RL's synchronizer between them."""

    def __init__(self, directory: Path, checkpoint: str, policy: type = Policy, **settings: Any) -> None:
        policy, rollout = ray.remote(num_cpus=1)(policy), ray.remote(num_cpus=1)(Rollout)
        store = str(directory / "store")
        self.policy = Group([policy.remote(rank, store, checkpoint) for rank in range(POLICY_RANKS)])
        self.rollouts = Group([rollout.remote(f"{store}-{number}") for number in range(ROLLOUTS)])
        vllm: "Any" = {
            "vllm_cfg": {"async_engine": False},
            "refit_transport": TRANSPORT,
            "refit_cfg": {TRANSPORT: {"checkpoint": checkpoint, "device": "cpu", **settings}},
        }
        self.synchronizer = CheckpointEngineWeightSynchronizer(
            SimpleNamespace(worker_group=self.policy, prepare_refit_info=lambda: None),
            SimpleNamespace(
                worker_group=self.rollouts, cfg=vllm, dp_size=ROLLOUTS, prepare_refit_info=lambda info: None
            ),
            checkpoint_engine_refit_config(vllm),
            _bucket_size_bytes=BUCKET_BYTES,
        )
        self.synchronizer.init_communicator()

    def train(self, spoiled: bool = False) -> None:
        ray.get([worker.train.remote(spoiled) for worker in self.policy.workers])

    def trained(self) -> "dict[str, torch.Tensor]":
        return ray.get([worker.weights.remote() for worker in self.policy.workers])[0]

    def loaded(self) -> "list[dict[str, torch.Tensor]]":
        return ray.get([worker.loaded.remote() for worker in self.rollouts.workers])
