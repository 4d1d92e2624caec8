#!/usr/bin/env python3
"""GRPO of a tiny model with TRL: its trainer publishes, and rollouts are made by an engine that follows.

    trl_grpo.py                                             # with an agent and a receiver that it starts
    trl_grpo.py --agent-socket PATH --engine-socket PATH    # with an agent's --socket, a receiver's --engine-socket

It needs TRL 1.16 and no GPU; the model is made here, and learns to answer with even tokens. For each policy it prints its
number, the reward of the answers that it was made from, and the hashes of its weights in the trainer and in the engine,
which are equal.

Without a GPU two functions of TRL are replaced: its attention kernel, which is for GPUs and fetched from a hub, and the
look-up of the GPU's peak FLOPs.
"""

import argparse
import hashlib
import json
import multiprocessing
import sys
import tempfile
from types import SimpleNamespace
from typing import Any, Sequence

import torch
import transformers
from datasets import Dataset
from tokenizers import Tokenizer, models
from trl.experimental.async_grpo import AsyncGRPOConfig, AsyncGRPOTrainer, async_grpo_trainer, packing
from trl.experimental.async_grpo.async_rollout_worker import RolloutSample

import lockstep
from lockstep.integrations.trl import WeightTransfer

MODEL = "actor"
VOCABULARY = 64
PROMPT = [1, 2, 3]
NEW_TOKENS = 8
GROUP = 32  # answers to one prompt
_WAITING_SAMPLES = 2 * GROUP


def write_checkpoint(directory: str) -> None:
    """A model of 70,000 random parameters, with a tokenizer that says "17" for 17."""
    config = transformers.Qwen3Config(
        vocab_size=VOCABULARY,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=16,
        tie_word_embeddings=True,
        dtype="float32",
    )
    transformers.Qwen3ForCausalLM(config).save_pretrained(directory)
    tokenizer = Tokenizer(models.WordLevel({str(token): token for token in range(VOCABULARY)}, unk_token="0"))
    transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="0").save_pretrained(directory)


def reward(answer: "Sequence[int]") -> float:
    """The share of even tokens."""
    return sum(token % 2 == 0 for token in answer) / len(answer)


def weights_hash(model: torch.nn.Module) -> str:
    digest = hashlib.sha256()
    for name, tensor in sorted(model.named_parameters()):
        digest.update(name.encode() + tensor.detach().contiguous().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


class Rollouts:
    """TRL's ``RolloutWorkerProtocol``: a process with an engine that answers from the newest weights, without a pause.

    Attributes:
        hashes: of the weights of each policy that the engine was given, by number.
    """

    def __init__(self, checkpoint: str, socket: str) -> None:
        context = multiprocessing.get_context("spawn")
        self.rollout_buffer: Any = context.Queue(_WAITING_SAMPLES)
        self.metrics_queue: Any = context.Queue()
        self.hashes: "dict[int, str]" = {}
        self._written, written = context.Pipe(duplex=False)  # label and hash of each policy, in order
        self._start = context.Event()
        self._process = context.Process(
            target=answer, args=(checkpoint, socket, self._start, self.rollout_buffer, written), daemon=True
        )
        self._process.start()  # before the first weights are sent, for it is to be given them

    def start(self) -> None:
        self._start.set()

    def stop(self) -> None:
        self._process.terminate()
        self._process.join()

    def update_model_version(self, model_version: int) -> None:
        """``WeightTransfer`` has waited until the engine serves the policy, so its hash is in the pipe. An earlier run may
        have had policies of the same number: the last one counts. A trainer that resumes calls this before it sends any.
        """
        while self._written.poll():
            label, hashed = self._written.recv()
            if label == str(model_version):
                self.hashes[model_version] = hashed

    def check_health(self, stale_after_s: float) -> None:
        if not self._process.is_alive():
            raise RuntimeError(f"the engine ended with status {self._process.exitcode}")


def answer(checkpoint: str, socket: str, start: Any, samples: Any, written: Any) -> None:
    """The engine's process: groups of answers, each by one version, until it is ended."""
    torch.set_num_threads(1)
    config = transformers.AutoConfig.from_pretrained(checkpoint)
    model = transformers.AutoModelForCausalLM.from_config(config).eval()
    follower = lockstep.Follower(
        model,
        model=MODEL,
        socket=socket,
        after_write=lambda served: written.send((served.label, weights_hash(model))),
    )
    start.wait()
    group = 0
    while True:
        with follower.serving() as served:  # the weights do not change inside
            answers, log_probs = generate(model)
        policy = int(served.label)
        rewards = torch.tensor([reward(tokens) for tokens in answers.tolist()])
        advantages = (rewards - rewards.mean()) / (rewards.std() + 1e-6)
        for position in range(GROUP):
            samples.put(
                RolloutSample(
                    prompt=[],
                    completion=[],
                    input_ids=torch.cat([torch.tensor(PROMPT), answers[position]]).numpy(),
                    completion_mask=torch.tensor([0] * len(PROMPT) + [1] * NEW_TOKENS).numpy(),
                    old_log_probs=torch.cat([torch.zeros(len(PROMPT)), log_probs[position]]).numpy(),
                    advantage=float(advantages[position]),
                    model_version=policy,
                    group_id=group,
                    metrics={"reward": float(rewards[position])},
                )
            )
        group += 1


@torch.inference_mode()
def generate(model: torch.nn.Module) -> "tuple[torch.Tensor, torch.Tensor]":
    """GROUP sampled answers to PROMPT, and the log-probability of each token: [GROUP, NEW_TOKENS] both."""
    ids, log_probs = torch.tensor([PROMPT] * GROUP), []
    for _ in range(NEW_TOKENS):
        scores = model(input_ids=ids).logits[:, -1].log_softmax(dim=-1)
        token = torch.multinomial(scores.exp(), 1)
        ids = torch.cat([ids, token], dim=-1)
        log_probs.append(scores.gather(-1, token))
    return ids[:, len(PROMPT) :], torch.cat(log_probs, dim=-1)


class Published(transformers.TrainerCallback):
    """The hash of each policy that goes out, which TRL calls after this, and the reward of the samples of each step."""

    def __init__(self) -> None:
        self.hashes: "list[str]" = []
        self.rewards: "list[float]" = []

    def goes_out(self, model: torch.nn.Module) -> None:
        self.hashes.append(weights_hash(model))

    def on_train_begin(self, *_: Any, model: torch.nn.Module, **__: Any) -> None:
        self.goes_out(model)

    def on_step_end(self, *_: Any, model: torch.nn.Module, **__: Any) -> None:
        self.goes_out(model)

    def on_log(self, *_: Any, logs: "dict[str, float]", **__: Any) -> None:
        if "reward" in logs:
            self.rewards.append(logs["reward"])


def replace_what_needs_a_gpu() -> None:
    packing._flash_attn = lambda: SimpleNamespace(flash_attn_varlen_func=attention)
    async_grpo_trainer.get_peak_flops_per_device = lambda *_: None


def attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    query_ends: torch.Tensor,
    key_ends: torch.Tensor,
    *_: int,
    softmax_scale: float,
    **__: Any,
) -> torch.Tensor:
    """What TRL takes from flash-attention's ``flash_attn_varlen_func``: causal attention of packed sequences. A
    sequence's queries are at the places of its last keys. All three are [tokens, heads, size]; ends begin with 0."""
    made = []
    for sequence in range(len(query_ends) - 1):
        queries = query[query_ends[sequence] : query_ends[sequence + 1]]
        keys = slice(key_ends[sequence], key_ends[sequence + 1])
        seen = torch.ones(len(queries), keys.stop - keys.start, dtype=torch.bool)
        made.append(
            torch.nn.functional.scaled_dot_product_attention(
                queries.transpose(0, 1),
                key[keys].transpose(0, 1),
                value[keys].transpose(0, 1),
                attn_mask=seen.tril(seen.shape[1] - seen.shape[0]),
                scale=softmax_scale,
                enable_gqa=True,
            ).transpose(0, 1)
        )
    return torch.cat(made)


def train(checkpoint: str, agent_socket: str, rollouts: Rollouts, published: Published, steps: int) -> None:
    if not torch.cuda.is_available():
        replace_what_needs_a_gpu()
    trainer = AsyncGRPOTrainer(
        checkpoint,
        args=AsyncGRPOConfig(
            f"{checkpoint}/trained",
            max_steps=steps,
            per_device_train_batch_size=GROUP,
            learning_rate=2e-2,
            max_staleness=2,
            token_budget=0,
            bf16=False,
            gradient_checkpointing=False,
            save_strategy="no",
            report_to=[],
            disable_tqdm=True,
        ),
        train_dataset=Dataset.from_dict({"prompt": [" ".join(map(str, PROMPT))]}),
        callbacks=[published],
        rollout_worker=rollouts,
        weight_transfer=WeightTransfer(MODEL, checkpoint, socket=agent_socket),
    )
    trainer.remove_callback(transformers.PrinterCallback)
    trainer.train()


def sockets(options: argparse.Namespace) -> "tuple[str, str]":
    """The agent's and the receiver's; of daemons that end with this process, where none are given."""
    if options.agent_socket and options.engine_socket:
        return options.agent_socket, options.engine_socket
    agent = lockstep.ensure_agent(end_with_owner=True)
    receiver = lockstep.ensure_receiver(agent.control, MODEL, engine_load="in-place", end_with_owner=True)
    return agent.socket, receiver.engine_socket


def main(arguments: "Sequence[str] | None" = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--agent-socket")
    parser.add_argument("--engine-socket")
    parser.add_argument("--steps", type=int, default=20)
    options = parser.parse_args(arguments)
    if bool(options.agent_socket) != bool(options.engine_socket):
        parser.error("give --agent-socket and --engine-socket, or neither")
    agent_socket, engine_socket = sockets(options)
    with tempfile.TemporaryDirectory() as checkpoint:
        write_checkpoint(checkpoint)
        rollouts, published = Rollouts(checkpoint, engine_socket), Published()
        train(checkpoint, agent_socket, rollouts, published, options.steps)
    for number, hashed in enumerate(published.hashes, start=1):
        reward = published.rewards[number - 2] if number > 1 else None
        print(json.dumps({"policy": number, "reward": reward, "trainer": hashed, "engine": rollouts.hashes[number]}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
