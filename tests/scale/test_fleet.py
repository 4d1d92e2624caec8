"""A fleet on one machine: none is left behind, nothing grows, and an idle receiver costs the agent next to nothing.

LOCKSTEP_FLEET=RECEIVERSxVERSIONS makes it another size.
"""

import os
import time

from fleet import Fleet
from footprint import MIB, idling

RECEIVERS, VERSIONS = (int(number) for number in os.environ.get("LOCKSTEP_FLEET", "64x200").split("x"))
SETTLED = VERSIONS // 4
AGENT_THREADS = 40  # a call in progress has one more; a receiver that is connected has none, and makes a call at a time
AGENT_GROWS, RECEIVER_GROWS = 4 * MIB, 2 * MIB
SETTLES_S, IDLE_S = 3, 8
IDLE_CORE_SHARE = 0.004
IDLE_WAKEUPS_PER_S = (
    30 + RECEIVERS
)  # a thread for each receiver that looks around ten times a second makes ten times that


def test_a_fleet_follows_every_version_and_nothing_grows(cluster, record_property):
    fleet = Fleet(cluster, RECEIVERS)
    with fleet.publisher:
        fleet.start()
        every_s = fleet.pace()
        waits = fleet.follow(SETTLED, every_s)
        fleet.wait_for_all()
        settled = fleet.resident_bytes()

        waits += fleet.follow(VERSIONS, every_s)
        fleet.wait_for_all(behind=1)
        threads = fleet.agent_threads()
        fleet.wait_for_all()
        grown = [now - before for before, now in zip(settled, fleet.resident_bytes())]
        time.sleep(SETTLES_S)
        idle_threads = fleet.agent_threads()
        idle = idling([daemon.process.pid for daemon in (fleet.agent, fleet.receivers[0])], IDLE_S)
        for name, value in {
            "version_every_s": every_s,
            "waits": waits,
            "agent_grew_bytes": grown[0],
            "receiver_grew_most_bytes": max(grown[1:]),
            "agent_resident_bytes": settled[0],
            "receiver_resident_bytes": max(settled[1:]),
            "agent_threads": threads,
            "agent_idle_threads": idle_threads,
            "agent_idle": idle[0],
            "receiver_idle": idle[1],
        }.items():
            record_property(name, value)
            print(f"{name} = {value}")

        assert len(fleet.digests()) == 1
        fleet.receivers[0].wait_for(fleet.model.tensors)
    assert grown[0] < AGENT_GROWS and max(grown[1:]) < RECEIVER_GROWS
    assert idle_threads < AGENT_THREADS and threads < AGENT_THREADS + RECEIVERS
    assert all(one.core_share < IDLE_CORE_SHARE and one.wakeups_per_s < IDLE_WAKEUPS_PER_S for one in idle)
