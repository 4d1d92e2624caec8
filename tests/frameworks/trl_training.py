"""TRL's own asynchronous GRPO trainer publishes, and an engine in another process answers. Run by tests/frameworks.sh, which
installs TRL; pytest finds this file only when it is named."""

import copy
import statistics
import sys

import peft
import pytest
import torch
import transformers
from harness import MODEL, ROOT, Cluster
from trl.experimental.async_grpo import async_grpo_trainer

from lockstep.integrations.trl import WeightTransfer

sys.path.insert(0, str(ROOT / "python/examples"))
import trl_grpo

STEPS = 20


class Rollouts(trl_grpo.Rollouts):
    """Keeps the samples that the trainer took."""

    def __init__(self, *arguments: str) -> None:
        super().__init__(*arguments)
        self.taken: "list[trl_grpo.RolloutSample]" = []
        self._samples, self.rollout_buffer = self.rollout_buffer, self

    def get(self, timeout: float) -> trl_grpo.RolloutSample:
        self.taken.append(self._samples.get(timeout=timeout))
        return self.taken[-1]

    def qsize(self) -> int:
        return self._samples.qsize()


class Published(trl_grpo.Published):
    """Keeps each policy."""

    def __init__(self) -> None:
        super().__init__()
        self.policies: "dict[int, dict[str, torch.Tensor]]" = {}

    def goes_out(self, model: torch.nn.Module) -> None:
        super().goes_out(model)
        self.policies[len(self.hashes)] = copy.deepcopy(model.state_dict())


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """The checkpoint, the rollouts and the policies of a training."""
    checkpoint = str(tmp_path_factory.mktemp("checkpoint"))
    trl_grpo.write_checkpoint(checkpoint)
    with Cluster() as cluster:
        agent, socket = cluster.agent(), cluster.directory / "engine.sock"
        cluster.receiver(agent, engine_load="in-place", engine_socket=socket)
        rollouts, published = Rollouts(checkpoint, str(socket)), Published()
        trl_grpo.train(checkpoint, str(agent.socket), rollouts, published, STEPS)
    return checkpoint, rollouts, published


def test_every_policy_of_a_training_is_bit_for_bit_in_the_engine_that_answers_by_it(trained):
    _, rollouts, published = trained
    assert rollouts.hashes == dict(enumerate(published.hashes, start=1))
    assert len(set(published.hashes)) == STEPS + 1, "a step changed nothing"
    assert statistics.mean(published.rewards[-3:]) > statistics.mean(published.rewards[:3]) + 0.1, "nothing was learned"


def test_samples_are_stamped_with_the_policy_that_answered(trained):
    checkpoint, rollouts, published = trained
    model = transformers.AutoModelForCausalLM.from_pretrained(checkpoint)
    stamps = {sample.model_version for sample in rollouts.taken}
    assert stamps <= published.policies.keys() and len(stamps) > STEPS // 2

    def difference(sample: trl_grpo.RolloutSample, policy: int) -> float:
        model.load_state_dict(published.policies[policy])
        ids = torch.tensor(sample.input_ids)
        with torch.no_grad():
            scores = model(input_ids=ids[None]).logits[0, :-1].log_softmax(dim=-1)
        scored = torch.cat([torch.zeros(1), scores.gather(-1, ids[1:, None])[:, 0]]) * torch.tensor(
            sample.completion_mask
        )
        return float((scored - torch.tensor(sample.old_log_probs)).abs().max())

    for sample in rollouts.taken[:: trl_grpo.GROUP]:
        assert difference(sample, sample.model_version) < 1e-3
        assert difference(sample, sample.model_version % STEPS + 1) > 1e-2


def send(transfer: WeightTransfer, model: torch.nn.Module) -> None:
    """As AsyncGRPOTrainer does."""
    transfer.pause()
    transfer.send_weights(async_grpo_trainer._iter_vllm_named_params(model))
    transfer.resume()


def test_a_float32_trainer_of_a_bfloat16_checkpoint_publishes_rounded_weights_under_trls_numbers(cluster, tmp_path):
    agent = cluster.agent()
    receiver = cluster.receiver(agent)
    trl_grpo.write_checkpoint(str(tmp_path))
    transformers.AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.bfloat16).save_pretrained(tmp_path)
    model = transformers.AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.float32)
    policies = iter((41, 42))
    transfer = WeightTransfer(MODEL, tmp_path, socket=agent.socket, policy=lambda: next(policies), dtype=torch.bfloat16)
    transfer.init_weight_transfer()
    for policy in ("41", "42"):
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.mul_(1.01)
        send(transfer, model)
        assert receiver.model_status()["held_label"] == policy
        receiver.wait_for({name: tensor.detach().bfloat16() for name, tensor in model.named_parameters()})
    transfer.destroy()


def test_an_adapter_arrives_merged_into_the_weights_of_its_model(cluster, tmp_path):
    agent = cluster.agent()
    receiver = cluster.receiver(agent)
    trl_grpo.write_checkpoint(str(tmp_path))
    model = transformers.AutoModelForCausalLM.from_pretrained(tmp_path)
    tuned = peft.get_peft_model(
        copy.deepcopy(model), peft.LoraConfig(target_modules=["q_proj"], init_lora_weights=False)
    )
    transfer = WeightTransfer(MODEL, tmp_path, socket=agent.socket)
    tuned.merge_adapter()
    send(transfer, tuned)
    merged = dict(tuned.merge_and_unload().named_parameters())
    assert not torch.equal(
        merged["model.layers.0.self_attn.q_proj.weight"], model.model.layers[0].self_attn.q_proj.weight
    )
    receiver.wait_for(merged)
    transfer.destroy()


def test_a_training_that_is_called_again_publishes_on_in_another_run(cluster, tmp_path):
    agent = cluster.agent()
    receiver = cluster.receiver(agent)
    trl_grpo.write_checkpoint(str(tmp_path))
    model = transformers.AutoModelForCausalLM.from_pretrained(tmp_path)
    transfer = WeightTransfer(MODEL, tmp_path, socket=agent.socket)
    for label in ("1", "2"):
        send(transfer, model)
        transfer.destroy()
        assert receiver.model_status()["held_label"] == label
