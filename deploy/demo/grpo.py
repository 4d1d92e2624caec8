"""GRPO in plain PyTorch for deploy/demo.sh --vllm: a tiny Qwen3 learns to answer with even tokens. It knows neither
Lockstep nor vLLM: others publish its model, and give it the answers that a server sampled.

All is float32: then greedy tokens are the same in every program that has the same weights.
"""

import random
from pathlib import Path

import torch
from transformers import Qwen3Config, Qwen3ForCausalLM
from transformers.utils.logging import disable_progress_bar

VOCABULARY, PROMPT_TOKENS, ANSWER_TOKENS = 128, 4, 16
PROMPTS, GROUP = 8, 8  # of a step, and answers to each prompt
LEARNING_RATE = 1e-2
CONFIG = {
    "vocab_size": VOCABULARY,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "max_position_embeddings": 256,
    "tie_word_embeddings": False,
    "dtype": torch.float32,
}


def reward(answer: "list[int]") -> float:
    """The share of even tokens."""
    return sum(token % 2 == 0 for token in answer) / len(answer)


class Grpo:
    """The policy in training.

    Args:
        directory: where a checkpoint of the first weights goes, for a server to start with.
    """

    def __init__(self, directory: Path) -> None:
        torch.manual_seed(1)
        torch.set_num_threads(1)  # it is too small for more
        disable_progress_bar()
        self.model = Qwen3ForCausalLM(Qwen3Config(**CONFIG))
        self.model.save_pretrained(directory)
        self._optimizer = torch.optim.AdamW(self.model.parameters(), LEARNING_RATE, betas=(0.9, 0.95), weight_decay=0)
        self._random = random.Random(1)

    @property
    def parameters(self) -> int:
        return sum(parameter.numel() for parameter in self.model.parameters())

    def prompts(self) -> "list[list[int]]":
        """Those of the next step."""
        return [[self._random.randrange(VOCABULARY) for _ in range(PROMPT_TOKENS)] for _ in range(PROMPTS)]

    def learn(self, prompts: "list[list[int]]", answers: "list[list[list[int]]]") -> float:
        """One step on a group of answers to each prompt. The answers' mean reward."""
        rewards = torch.tensor([[reward(answer) for answer in group] for group in answers])
        advantages = (rewards - rewards.mean(1, keepdim=True)) / (rewards.std(1, keepdim=True) + 1e-4)
        tokens = torch.tensor([prompt + answer for prompt, group in zip(prompts, answers) for answer in group])
        logits = self.model(input_ids=tokens).logits[:, PROMPT_TOKENS - 1 : -1]
        of_answers = tokens[:, PROMPT_TOKENS:, None]
        log_probabilities = logits.log_softmax(-1).gather(-1, of_answers).squeeze(-1)
        # The answers are by these very weights: the ratio of new to old probabilities is 1, and nothing is clipped.
        loss = -(advantages.flatten()[:, None] * log_probabilities).mean()
        self._optimizer.zero_grad()
        loss.backward()
        self._optimizer.step()
        return float(rewards.mean())

    @torch.inference_mode()
    def greedy(self, prompt: "list[int]") -> "list[int]":
        """What the model answers at temperature 0."""
        tokens = list(prompt)
        for _ in range(ANSWER_TOKENS):
            tokens.append(int(self.model(input_ids=torch.tensor([tokens])).logits[0, -1].argmax()))
        return tokens[len(prompt) :]
