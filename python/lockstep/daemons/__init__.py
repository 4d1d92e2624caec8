"""The daemons of this host and user, started where they are wanted. Of lockstep it imports ``lockstep.core`` and
``lockstep.programs`` alone."""

from lockstep.daemons._daemons import Agent, Daemon, Receiver, ensure_agent, ensure_receiver

__all__ = ["Agent", "Daemon", "Receiver", "ensure_agent", "ensure_receiver"]
