"""``ensure_agent`` beside a trainer, ``ensure_receiver`` beside an engine: for programs that do not choose their hosts,
as under Ray. Elsewhere a service manager is better."""

import os
import signal
import socket
from dataclasses import dataclass
from typing import Any, Sequence, Union

from lockstep.core import places
from lockstep.core.errors import BadDataError, DeadlineError
from lockstep.core.keywords import refuse_unknown
from lockstep.daemons._command import Command, Option
from lockstep.daemons._ensure import ensure
from lockstep.daemons._place import Place, Running
from lockstep.daemons._process import Process

# Keywords that are no options of a program.
_OWN = ("name", "end_with_owner", "timeout")
# What a daemon's place decides.
_FIXED = ("socket", "control_socket", "address_file", "owners", "engine_socket")


@dataclass(frozen=True)
class Daemon:
    """A daemon that listened when this was made.

    Attributes:
        pid: its process.
        directory: its sockets and its log; what it holds of models too, unless the options said otherwise.
        log: the file that it appends to.
        control: its control plane for this user on this host, "unix:PATH", as ``lockstepctl`` and receivers take it.
        grpc: the same on TCP, "HOST:PORT"; "" where it does not listen there.
    """

    pid: int
    directory: str
    log: str
    control: str
    grpc: str

    def stop(self, timeout: float = 30.0) -> None:
        """Ends the daemon for all its users, as SIGTERM does, and waits for its end. A second call while it drains ends
        it at once. Does nothing if it has ended before. DeadlineError: it took longer than ``timeout`` seconds."""
        with Process(self.pid) as process:
            if places.listener(self.control.partition(":")[2]) != self.pid:  # the number may be another process' by now
                return
            process.send(signal.SIGTERM)
            if not process.ended(timeout):
                raise DeadlineError(f"process {self.pid} did not end in {timeout:g} s; see {self.log}")


@dataclass(frozen=True)
class Agent(Daemon):
    """A trainer_agent.

    Attributes:
        socket: where trainers on this host publish.
        lanes: where receivers get bytes, "HOST:PORT"; they are told by the agent.
    """

    socket: str
    lanes: str


@dataclass(frozen=True)
class Receiver(Daemon):
    """A raas_receiver.

    Attributes:
        name: what it calls itself, for the agent's status and ``wait_served(receivers=[name])``.
        root: where it publishes.
        engine_socket: where an engine's ranks attach; "" unless with ``engine_load="in-place"``.
    """

    name: str
    root: str
    engine_socket: str

    def replica(self, model: str) -> str:
        """The directory of a model, which ``Replica``, ``published`` and ``wait_for`` take."""
        return os.path.join(self.root, model)

    def current(self, model: str) -> str:
        """The directory of its newest version, as engines load it."""
        return os.path.join(self.root, model, "current")


def ensure_agent(
    *, name: str = "agent", listen: str = "", end_with_owner: bool = False, timeout: float = 60.0, **options: Option
) -> Agent:
    """This host's agent for this user, started when there is none. Any number of processes may call it at once.

    Args:
        name: which one, where a host has several.
        listen: "HOST:PORT" for receivers on other hosts. HOST is the address by which they reach this one. With port 0
            the system chooses a port, and perhaps another one for an agent that replaces a dead one. Lanes listen on
            the same HOST. Beyond loopback it needs ``tls_cert`` and the like with ``tls_policy``, or the name of a
            network that may read the weights, ``allow_insecure_network="10.20.0.0/16"``. "": this host alone.
        end_with_owner: this process becomes an owner of the agent, as does every other that asks for it. The agent ends
            with its last owner, even a killed one, and leaves no memory behind (``segments="memfd"``, unless the
            options say otherwise). Otherwise it stays, and what it holds stays in memory until its directory is
            removed.
        timeout: seconds for all of this.
        options: any other option of trainer_agent (docs/reference/options.md), ``retain_bytes="4GiB"``. Paths are absolute.

    Raises:
        TypeError: the program has no such option.
        BadDataError: the program does not take an option's value.
        StateError: an agent of this name was started otherwise; the text has each difference.
        UnavailableError, DeadlineError: it did not start; the text has the end of its log.
        NotFoundError: the program is not there.
        PermissionDeniedError, IoError: its directory is not this user's alone, or cannot be made.
    """
    place = Place(name)
    settings: "dict[str, Option]" = {
        "socket": place.file("export.sock"),
        "lane_listen": (listen.rpartition(":")[0] or "127.0.0.1") + ":0",
        "segment_dir": place.file("segments"),
    }
    if end_with_owner:
        settings["segments"] = "memfd"
    running = _ensured("ensure_agent", "trainer_agent", place, settings, options, listen, end_with_owner, timeout)
    return Agent(**_daemon(place, running), socket=place.file("export.sock"), lanes=running.addresses["lanes"])


def ensure_receiver(
    agent: str,
    model: "Union[str, Sequence[str]]",
    *,
    name: str = "receiver",
    listen: str = "",
    end_with_owner: bool = False,
    timeout: float = 60.0,
    **options: Option,
) -> Receiver:
    """This host's receiver for this user, started when there is none. It has the rules and errors of ``ensure_agent``.

    Args:
        agent: the agent's address, its ``grpc``, or on its own host its ``control``.
        model: the model or models to follow.
        name: which receiver; it calls itself HOST-NAME.
        listen: its control plane on TCP; "": on this host alone.
        end_with_owner: as of an agent; the directory that an engine has loaded stays.
        timeout: seconds for all of this.
        options: any other option of raas_receiver: ``root="/dev/shm/lockstep-receiver"``, which engines of other users need, or
            ``engine_load="in-place"``. Paths are absolute.
    """
    place = Place(name)
    calls_itself = f"{socket.gethostname()}-{name}"
    root = str(options.pop("root", None) or place.file("replicas"))
    engine_socket = place.file("engine.sock") if options.get("engine_load") == "in-place" else ""
    settings: "dict[str, Option]" = {
        "source": agent,
        "model": [model] if isinstance(model, str) else list(model),
        "name": calls_itself,
        "root": root,
        "engine_socket": engine_socket,
    }
    running = _ensured("ensure_receiver", "raas_receiver", place, settings, options, listen, end_with_owner, timeout)
    return Receiver(**_daemon(place, running), name=calls_itself, root=root, engine_socket=engine_socket)


def _ensured(
    function: str,
    program: str,
    place: Place,
    settings: "dict[str, Option]",
    options: "dict[str, Option]",
    listen: str,
    owned: bool,
    timeout: float,
) -> Running:
    for key in _FIXED:
        if key in options:
            raise BadDataError(f"{key} cannot be chosen: it is in the daemon's directory, {place.path}")
    if options:
        refuse_unknown(function, options, [*_OWN, *Command(program, {}).known()])
    all_settings = {
        **settings,
        "control_socket": place.control,
        "address_file": place.file("addresses.json"),
        "listen": listen,
        "owners": place.file("owners") if owned else "",
        **options,
    }
    return ensure(Command(program, all_settings), place, owned, timeout)


def _daemon(place: Place, running: Running) -> "dict[str, Any]":
    return {
        "pid": running.pid,
        "directory": place.path,
        "log": place.file("log"),
        "control": f"unix:{place.control}",
        "grpc": running.addresses.get("grpc", ""),
    }
