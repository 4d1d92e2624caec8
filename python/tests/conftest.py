"""A receiver that tests drive by hand, and followers of it."""

import pytest
from fake_receiver import FakeReceiver

import lockstep


@pytest.fixture
def receiver(tmp_path):
    receiver = FakeReceiver(tmp_path / "engine.sock")
    yield receiver
    receiver.close()


@pytest.fixture
def follow(receiver):
    """Makes followers that are closed at the test's end."""
    made = []

    def make(module, **options) -> lockstep.Follower:
        made.append(lockstep.Follower(module, model="actor", socket=receiver.path, **options))
        return made[-1]

    yield make
    for follower in made:
        follower.close()
