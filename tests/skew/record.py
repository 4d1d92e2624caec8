"""Records what this checkout's release says and leaves on disk, for later releases to be held to.

    PYTHONPATH=python:tests/integration:tests/fault .cache/venv/bin/python tests/skew/record.py [DIRECTORY]

Run it once for a release, at the commit that has its VERSION. Nothing is recorded over.
"""

import json
import subprocess
import sys
from pathlib import Path

from harness import Cluster, wait_until
from ports import ReservedPort
from recording import ROOT, SKEW, LaneTap, Relay, field_table, pack, tensors


class EngineRank:
    """A follower in a process of its own: it lends a module's memory through ``socket``."""

    PROGRAM = """
import sys, torch, lockstep
module = torch.nn.Module()
module.norm = torch.nn.Parameter(torch.zeros(2))
module.w = torch.nn.Parameter(torch.zeros(3, 2, dtype=torch.bfloat16))
with lockstep.Follower(module, model="actor", socket=sys.argv[1], lend=True) as follower:
    sys.stdin.read()
"""

    def __init__(self, socket: Path) -> None:
        self._process = subprocess.Popen([sys.executable, "-c", self.PROGRAM, str(socket)], stdin=subprocess.PIPE)

    def close(self) -> None:
        self._process.communicate()


def record_daemons(target: Path) -> None:
    cluster = Cluster()
    port = ReservedPort()
    lanes = LaneTap(port.address)
    agent = cluster.agent(lane_listen=port.address, lane_advertise=lanes.address)
    ranks = Relay(cluster.directory / "rank.sock", agent.socket, 16, "rank", "agent")
    engine_socket = cluster.directory / "engine.sock"
    receiver = cluster.receiver(agent, engine_load="in-place", engine_socket=engine_socket)
    engine = Relay(cluster.directory / "relay.sock", engine_socket, 40, "rank", "receiver")
    rank = EngineRank(cluster.directory / "relay.sock")
    agent.socket = cluster.directory / "rank.sock"
    with agent.publisher(tensors(1)) as publisher:
        publisher.publish(1, tensors(1))
        wait_until(lambda: receiver.model_status()["engines"], "the engine's rank is attached")
        publisher.publish(2, tensors(2))
        receiver.wait_for(tensors(2))
        wait_until(
            lambda: receiver.model_status()["engines"][0]["serving"]["version"] == 2, "the engine serves version 2"
        )
        ranks.save(target / "rank.json")
        engine.save(target / "engine.json")
        lanes.save(target / "lanes.json")
    rank.close()
    receiver.stop()
    agent.kill()  # as it lies there when it is needed
    pack(agent.segment_dir, target / "agent.tar.gz")
    pack(receiver.root, target / "replica.tar.gz")
    cluster.close()


def main() -> None:
    release = (ROOT / "VERSION").read_text().strip()
    target = Path(sys.argv[1]) if len(sys.argv) > 1 else SKEW / release
    target.mkdir(parents=True)
    record_daemons(target)
    protos = sorted((ROOT / "proto/lockstep/v1").glob("*.proto"))
    fields = field_table([path.relative_to(ROOT) for path in protos])
    (target / "protos.txt").write_text("\n".join(fields) + "\n")
    print(json.dumps({path.name: path.stat().st_size for path in sorted(target.iterdir())}))


if __name__ == "__main__":
    main()
