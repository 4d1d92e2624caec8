"""What happens in the demo: which process joins when, which is killed when, and what must be true afterwards.

    A follows from the start. B joins after a third of the steps. C starts with A, is SIGKILLed while a version is on
    its way, and comes back several versions later. With --kill-agent the agent is SIGKILLed while the trainer writes.

The demo lets the trainer step when the live receivers have committed the version before, so that the table has a row
for each; now and then it lets a step run free, and receivers take what they have missed at once. That pace is the
demo's alone: in Lockstep a trainer never waits for receivers.
"""

import hashlib
import struct
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from daemons import MODEL, Receiver, kill, wait_for_version
from models import write_config
from trainer import Trainer

import lockstep

LEARNING_RATE = 1e-6  # as RL of large models has it
MIN_STEPS = 4
MIN_STEPS_WITH_AGENT_KILL = 5
FREE_STEP_EVERY = 5


@dataclass(frozen=True)
class Schedule:
    """Each is the step before which, or (the kills) during which, it happens."""

    join_b: int
    kill_c: int
    return_c: int
    kill_agent: int | None

    @staticmethod
    def spread_over(steps, kill_agent):
        kill_c = steps // 3 + 1
        return_c = kill_c + max(2, (steps + 2) // 3)
        return Schedule(
            join_b=max(1, steps // 3), kill_c=kill_c, return_c=return_c, kill_agent=return_c + 1 if kill_agent else None
        )


@dataclass(frozen=True)
class Outcome:
    versions: list  # Published
    syncs: list  # (receiver, lockstep.control.Sync), in the order of version and receiver
    trainer_digest: str
    replica_digests: dict  # receiver -> sha256
    complaints: list  # sentences; empty when all is well


class Scenario:
    def __init__(self, workspace, model, flags):
        self._workspace = workspace
        self._model = model
        self._steps = flags.steps
        self._learning_rate = flags.learning_rate
        self._schedule = Schedule.spread_over(flags.steps, flags.kill_agent)
        self._made_up = flags.checkpoint is None
        self._timeout_s = 60 + 30 * model.model_bytes / 1e9
        assets = workspace.path / "assets" if self._made_up else flags.checkpoint.absolute()
        if self._made_up:
            write_config(flags.shape, assets)
        self._always_delta = self._made_up and flags.learning_rate <= LEARNING_RATE
        self._receivers = [Receiver(workspace, letter, assets=str(assets)) for letter in "ABC"]
        self._agent = None
        self._trainer = None
        self._versions = []  # Published
        self._before_agent_kill = {}  # receiver -> number of syncs it had made

    def run(self):
        a, _, c = self._receivers
        self._start_agent()
        print("agent listens; the trainer makes its weights")
        for receiver in (a, c):
            receiver.start(self._agent, self._timeout_s)
        print("receivers A and C wait for version 1")
        with lockstep.Publisher.in_place(self._model.metas, model=MODEL, socket=self._agent.socket) as publisher:
            self._trainer = Trainer(publisher, self._model, self._learning_rate)
            self._publish(0)
            self._wait_for_receivers(1)
            self._print_syncs(1)
            for step in range(1, self._steps + 1):
                self._make_step(step)
            self._wait_for_receivers(self._steps + 1)
            return self._check()

    def _make_step(self, step):
        _, b, c = self._receivers
        if step == self._schedule.join_b:
            print("receiver B joins late")
            self._start_receiver(b, step)
        if step == self._schedule.return_c:
            print(f"receiver C comes back, holding version {c.version} of {step}")
            self._start_receiver(c, step)
        if step == self._schedule.kill_agent:
            with ThreadPoolExecutor(1) as other:
                killed = other.submit(self._kill_agent, step + 1)
                self._publish(step)
                killed.result()
        else:
            self._publish(step)
        if step == self._schedule.kill_c:
            c.kill()
            print(f"receiver C is killed with SIGKILL while version {step + 1} is on its way")
        if step % FREE_STEP_EVERY == 0 and step + 1 not in (self._schedule.kill_agent, self._steps + 1):
            print(f"version {step + 1:3}   no wait for the receivers")
        else:
            self._wait_for_receivers(step + 1)
            self._print_syncs(step + 1)

    def _kill_agent(self, version):
        self._before_agent_kill = {receiver.letter: len(receiver.syncs) for receiver in self._receivers}
        time.sleep(self._versions[-1].step_ms / 2000)  # half-way, if this step takes as long as the last one
        kill(self._agent)
        print(f"the agent is killed with SIGKILL while version {version} is being written; it starts again")
        self._start_agent()

    # What must be true.

    def _check(self):
        final = self._versions[-1]
        with ThreadPoolExecutor() as pool:
            files = [Path(receiver.daemon.current(MODEL), "model.safetensors") for receiver in self._receivers]
            digests = dict(zip((receiver.letter for receiver in self._receivers), pool.map(data_section_digest, files)))
        syncs = sorted(
            ((receiver.letter, sync) for receiver in self._receivers for sync in receiver.syncs),
            key=lambda pair: (pair[1].to.version, pair[0]),
        )
        complaints = [
            f"receiver {name} holds other bytes than the trainer: sha256 {digest}"
            for name, digest in digests.items()
            if digest != final.sha256
        ]
        complaints += [
            f"receiver {letter} did not verify version {sync.to.version}" for letter, sync in syncs if not sync.verified
        ]
        complaints += self._complaints_about_modes()
        complaints += self._complaints_about_counts(syncs)
        return Outcome(self._versions, syncs, final.sha256, digests, complaints)

    def _complaints_about_modes(self):
        """A receiver's first pull is a full one; afterwards what it holds is near enough for deltas.

        Of a checkpoint's weights, or of a higher learning rate, we do not know whether a delta is the smaller one, but for
        the agent's death.
        """
        for receiver in self._receivers:
            before_agent_kill = self._before_agent_kill.get(receiver.letter, len(receiver.syncs))
            for position, sync in enumerate(receiver.syncs):
                after_kill = position >= before_agent_kill
                if position > 0 and sync.mode == "full" and (after_kill or self._always_delta):
                    when = " after the agent's death" if after_kill else ""
                    yield f"receiver {receiver.letter} needed a full pull of version {sync.to.version}{when}"

    def _complaints_about_counts(self, syncs):
        """The trainer counts what it changes, the agent finds it out: of weights that are all bf16 they agree."""
        for _, sync in syncs:
            counted = self._versions[sync.to.version - 1].changed_elements
            if self._made_up and sync.mode == "delta" and sync.changed_elements != counted:
                yield f"version {sync.to.version} changed {counted} elements, its delta says {sync.changed_elements}"

    # Helpers.

    def _start_agent(self):
        # Segments with names outlive a killed agent.
        self._agent = lockstep.ensure_agent(end_with_owner=True, segments="tmpfs", timeout=self._timeout_s)
        self._workspace.callback(self._agent.stop)

    def _start_receiver(self, receiver, version):
        receiver.start(self._agent, self._timeout_s)
        self._wait_for_receivers(version)
        sync = receiver.syncs[-1]
        print(f"receiver {receiver.letter} holds version {sync.to.version}: {sync.mode}, {sync.payload_bytes:,} bytes")

    def _publish(self, step):
        self._versions.append(self._trainer.publish(step, last=step == self._steps))

    def _live(self):
        return [receiver for receiver in self._receivers if receiver.daemon]

    def _wait_for_receivers(self, version):
        wait_for_version(version, self._live(), self._timeout_s)

    def _print_syncs(self, version):
        density = self._versions[version - 1].density
        last = [(one.letter, one.syncs[-1]) for one in self._live()]
        syncs = "   ".join(f"{name} {sync.mode} {sync.publish_to_commit_us / 1000:.0f} ms" for name, sync in last)
        print(f"version {version:3}   {density:7.3%} changed   {syncs}")


def data_section_digest(path):
    """sha256 of a safetensors file behind its header, read as any program would read it."""
    sha256 = hashlib.sha256()
    with open(path, "rb") as file:
        (header_bytes,) = struct.unpack("<Q", file.read(8))
        file.seek(8 + header_bytes)
        while piece := file.read(1 << 22):
            sha256.update(piece)
    return sha256.hexdigest()
