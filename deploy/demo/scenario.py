"""The play: who joins when, who dies when, and what must be true afterwards.

    A follows from the start. B joins after a third of the steps. C starts with A, is SIGKILLed while a version is on
    its way, and comes back several versions later. With --kill-agent the agent is SIGKILLed while the trainer writes.

The demo lets the trainer step when the live receivers have committed the version before, so that the table has a row
for each; now and then it lets a step run free, and receivers skip or fold what they have missed. That pace is the
demo's alone: in Lockstep a trainer never waits for receivers.
"""

import hashlib
import struct
import subprocess
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from cast import Agent, Receiver, Trainer
from failure import EX_UNAVAILABLE, DemoFailed

MIN_STEPS = 4
MIN_STEPS_WITH_AGENT_KILL = 5
FREE_STEP_EVERY = 5


@dataclass(frozen=True)
class Cues:
    """Each is the step before which, or (the kills) during which, it happens."""

    join_b: int
    kill_c: int
    return_c: int
    kill_agent: int | None

    @staticmethod
    def spread_over(steps, kill_agent):
        kill_c = steps // 3 + 1
        return_c = kill_c + max(2, (steps + 2) // 3)
        return Cues(
            join_b=max(1, steps // 3), kill_c=kill_c, return_c=return_c, kill_agent=return_c + 1 if kill_agent else None
        )


@dataclass(frozen=True)
class Outcome:
    versions: list  # Published
    syncs: list  # Sync, in the order of version and receiver
    trainer_digest: str
    replica_digests: dict  # receiver -> sha256
    complaints: list  # sentences; empty when all is well


class Scenario:
    def __init__(self, stage, binaries, model, flags):
        self._stage = stage
        self._binaries = binaries
        self._model = model
        self._steps = flags.steps
        self._cues = Cues.spread_over(flags.steps, flags.kill_agent)
        self._made_up = flags.checkpoint is None
        self._timeout_s = 60 + 30 * model.model_bytes / 1e9
        assets = flags.checkpoint.absolute() if flags.checkpoint else self._make_assets()
        self._agent = Agent(stage, binaries)
        self._receivers = [Receiver(stage, binaries, name, self._agent.address, assets) for name in "ABC"]
        self._trainer = None
        self._before_agent_kill = {}  # receiver -> number of syncs it had made

    def play(self):
        self._open()
        for step in range(1, self._steps + 1):
            self._take(step)
        self._wait_for_receivers(self._steps + 1)
        return self._judge()

    # The acts.

    def _open(self):
        _, b, _ = self._receivers
        self._agent.start(self._timeout_s)
        self._say("agent listens; the trainer makes its weights")
        for receiver in self._receivers:
            if receiver is not b:
                receiver.start(self._timeout_s)
        self._say("receivers A and C wait for version 1")
        self._trainer = Trainer(self._stage, self._binaries, self._model, self._steps, self._agent)
        self._trainer.wait_for(1, self._timeout_s)
        self._wait_for_receivers(1)
        self._show_arrivals(1)

    def _take(self, step):
        _, b, c = self._receivers
        if step == self._cues.join_b:
            self._say("receiver B joins late")
            self._bring_in(b, step)
        if step == self._cues.return_c:
            self._say(f"receiver C comes back, holding version {c.version} of {step}")
            self._bring_in(c, step)
        self._trainer.step()
        if step == self._cues.kill_agent:
            self._kill_agent(step + 1)
        self._trainer.wait_for(step + 1, self._timeout_s)
        if step == self._cues.kill_c:
            c.kill()
            self._say(f"receiver C is killed with SIGKILL while version {step + 1} is on its way")
        if step % FREE_STEP_EVERY == 0 and step + 1 not in (self._cues.kill_agent, self._steps + 1):
            self._say(f"version {step + 1:3}   nobody waits")
        else:
            self._wait_for_receivers(step + 1)
            self._show_arrivals(step + 1)

    def _kill_agent(self, version):
        self._before_agent_kill = {receiver.name: len(receiver.syncs) for receiver in self._receivers}
        time.sleep(self._trainer.versions[-1].step_ms / 2000)  # half-way, if this step takes as long as the last one
        self._agent.kill()
        self._say(f"the agent is killed with SIGKILL while version {version} is being written; it starts again")
        self._agent.start(self._timeout_s)

    # What must be true.

    def _judge(self):
        final = self._trainer.versions[-1]
        with ThreadPoolExecutor() as pool:
            files = [receiver.published_file for receiver in self._receivers]
            digests = dict(zip((receiver.name for receiver in self._receivers), pool.map(data_section_digest, files)))
        syncs = sorted(
            (sync for receiver in self._receivers for sync in receiver.syncs),
            key=lambda sync: (sync.version, sync.receiver),
        )
        complaints = [
            f"receiver {name} holds other bytes than the trainer: sha256 {digest}"
            for name, digest in digests.items()
            if digest != final.sha256
        ]
        complaints += [
            f"receiver {sync.receiver} did not verify version {sync.version}" for sync in syncs if not sync.verified
        ]
        complaints += self._complaints_about_modes()
        complaints += self._complaints_about_counts(syncs)
        return Outcome(self._trainer.versions, syncs, final.sha256, digests, complaints)

    def _complaints_about_modes(self):
        """A receiver's first pull is a full one; afterwards what it holds is near enough for deltas.

        Of a checkpoint's weights we do not know whether a delta is the smaller one, but for the agent's death.
        """
        for receiver in self._receivers:
            before_agent_kill = self._before_agent_kill.get(receiver.name, len(receiver.syncs))
            for position, sync in enumerate(receiver.syncs):
                after_kill = position >= before_agent_kill
                if position > 0 and sync.mode == "full" and (after_kill or self._made_up):
                    when = " after the agent's death" if after_kill else ""
                    yield f"receiver {receiver.name} needed a full pull of version {sync.version}{when}"

    def _complaints_about_counts(self, syncs):
        """The trainer counts what it changes, the agent finds it out: of weights that are all bf16 they say the same."""
        for sync in syncs:
            counted = self._trainer.versions[sync.version - 1].changed_elements
            if self._made_up and sync.mode == "delta" and sync.changed_elements != counted:
                yield f"version {sync.version} changed {counted} elements, its delta says {sync.changed_elements}"

    # Helpers.

    def _bring_in(self, receiver, version):
        receiver.start(self._timeout_s)
        self._wait_for_receivers(version)
        sync = receiver.syncs[-1]
        self._say(f"receiver {receiver.name} holds version {sync.version}: {sync.mode}, {sync.payload_bytes:,} bytes")

    def _make_assets(self):
        assets = self._stage.path / "assets"
        made = subprocess.run(
            [self._binaries.trainer, *self._model.source_flags, "--write-assets", assets],
            capture_output=True,
            text=True,
        )
        if made.returncode != 0:
            raise DemoFailed(EX_UNAVAILABLE, f"the trainer could not write its assets: {made.stderr.strip()}")
        return assets

    def _wait_for_receivers(self, version):
        live = [receiver for receiver in self._receivers if receiver.alive]
        late = lambda: [receiver for receiver in live if receiver.version < version]  # noqa: E731
        self._stage.wait_until(
            lambda: not late(),
            self._timeout_s,
            [receiver.process for receiver in live] + [self._agent.process],
            lambda: "; ".join(
                f"receiver {one.name} has not committed version {version}; {one.standing()}" for one in late()
            ),
        )

    def _show_arrivals(self, version):
        density = self._trainer.versions[version - 1].density
        last = [(one.name, one.syncs[-1]) for one in self._receivers if one.alive]
        arrivals = "   ".join(f"{name} {sync.mode} {sync.publish_to_commit_ms:.0f} ms" for name, sync in last)
        self._say(f"version {version:3}   {density:7.3%} changed   {arrivals}")

    def _say(self, sentence):
        print(sentence, flush=True)


def data_section_digest(path):
    """sha256 of a safetensors file behind its header, read as anybody would read it."""
    sha256 = hashlib.sha256()
    with open(path, "rb") as file:
        (header_bytes,) = struct.unpack("<Q", file.read(8))
        file.seek(8 + header_bytes)
        while piece := file.read(1 << 22):
            sha256.update(piece)
    return sha256.hexdigest()
