#!/usr/bin/env python3
"""A plain PyTorch loop and two engines that follow it, each in a process of its own: after each step all three write on.

    two_engines.py                                             # with an agent and a receiver that it starts
    two_engines.py --agent-socket PATH --engine-socket PATH    # with an agent's --socket, a receiver's --engine-socket

The model learns this file, byte by byte. For each step it prints the loss and what each engine writes by the weights of that
step, which is what the trainer's own model writes. With ``--tensorboard DIRECTORY`` it logs the loss and what each version
took; it needs the package tensorboard then.
"""

import argparse
import contextlib
import multiprocessing
import sys
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Sequence

import torch

import lockstep

MODEL = "actor"
CONTEXT = 8
BATCH = 256
PROMPT = b"    return "


def make_model() -> torch.nn.Module:
    """From the last CONTEXT bytes to the scores of the next one."""
    return torch.nn.Sequential(
        torch.nn.Embedding(256, 32),
        torch.nn.Flatten(-2),
        torch.nn.Linear(32 * CONTEXT, 512),
        torch.nn.ReLU(),
        torch.nn.Linear(512, 256),
    )


@torch.inference_mode()
def write_on(model: torch.nn.Module, prompt: bytes, count: int = 24) -> bytes:
    text = list(prompt)
    for _ in range(count):
        text.append(int(model(torch.tensor(text[-CONTEXT:])).argmax()))
    return bytes(text[len(prompt) :])


def engine(name: str, socket: str, trainer: "Connection[bytes, tuple[int, int]]") -> None:
    """Answers each prompt with (step of the weights, text), until the trainer has ended."""
    torch.set_num_threads(1)
    model = make_model()
    follower = lockstep.Follower(model, model=MODEL, socket=socket, engine_name=name)
    with follower, contextlib.suppress(EOFError):
        while True:
            prompt = trainer.recv()
            with follower.serving() as served:  # the weights do not change inside
                trainer.send((served.version, write_on(model, prompt)))


def train_one_step(model: torch.nn.Module, optimizer: torch.optim.Optimizer, text: torch.Tensor) -> float:
    starts = torch.randint(0, len(text) - CONTEXT, (BATCH,))
    contexts = torch.stack([text[start : start + CONTEXT] for start in starts])
    loss = torch.nn.functional.cross_entropy(model(contexts), text[starts + CONTEXT])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return loss.item()


def log(directory: str, step: int, numbers: "dict[str, float]") -> None:
    """With Weights & Biases: ``wandb.log(numbers, step=step)``."""
    from torch.utils.tensorboard import SummaryWriter  # needs a package that the example does without

    with SummaryWriter(directory) as writer:
        for name, number in numbers.items():
            writer.add_scalar(name, number, step)


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
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument("--tensorboard")
    options = parser.parse_args(arguments)
    if bool(options.agent_socket) != bool(options.engine_socket):
        parser.error("give --agent-socket and --engine-socket, or neither")
    agent_socket, engine_socket = sockets(options)

    torch.set_num_threads(1)  # as the engines, so that sums are cut in the same places
    context = multiprocessing.get_context("spawn")
    engines = []
    for name in ("a", "b"):
        here, there = context.Pipe()
        context.Process(target=engine, args=(name, engine_socket, there), daemon=True).start()
        there.close()  # so that an engine that ends is seen to
        engines.append(here)

    text = torch.tensor(list(Path(__file__).read_bytes()))
    model = make_model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    with lockstep.Publisher.from_module(model, model=MODEL, socket=agent_socket) as publisher:
        for step in range(1, options.steps + 1):
            loss = train_one_step(model, optimizer, text)
            publisher.publish(step).wait(engines=len(engines), timeout=60)
            if options.tensorboard:
                log(options.tensorboard, step, {"loss": loss, **publisher.stats})
            for connection in engines:
                connection.send(PROMPT)
            answers = [connection.recv() for connection in engines]
            if answers != [(step, write_on(model, PROMPT))] * len(engines):
                raise AssertionError(f"step {step}: {answers}, the trainer writes {write_on(model, PROMPT)!r}")
            print(f"step {step}, loss {loss:.2f}, both engines: {answers[0][1]!r}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
