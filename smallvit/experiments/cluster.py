"""A set of runs on a Ray cluster: each run a task on some worker, in a folder of its own there.

What a worker writes comes back while it trains: config, log, checkpoints, results. So a run whose
worker is lost goes on from its last checkpoint on another one, and the caller's folder is in the
end as if it had trained everything itself. Data and pretrained starts have to lie in the same place
on all machines.
"""

import logging
import os
import re
import shutil
import socket
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import smallvit
from smallvit.config_io import from_plain, to_plain
from smallvit.experiments.engine import try_member
from smallvit.experiments.folder import alone, note_commit, note_end, read_set, unfinished
from smallvit.experiments.sets import Member, Outcome
from smallvit.extras import require
from smallvit.files import write_bytes
from smallvit.runs.places import CHECKPOINTS, INFO, LOG
from smallvit.training.pace import stopping

logger = logging.getLogger(__name__)

RAY = "ray"

_OWN = re.compile(rf"[\w.-]+|{CHECKPOINTS}/\d{{9}}\.(json|safetensors)")
_NOT_SENT = (".part", "lock")
_SECONDS = 1.0  # between two looks at a folder
_LOSSES = 5  # of workers in a row, after which a run has failed
_AHEAD = 4  # messages that may wait for the caller


@dataclass(frozen=True, kw_only=True)
class Place:
    """Where a run is trained.

    Attributes:
        host: The machine.
        pid: The process.
        node: Ray's name for the machine.
        folder: The worker's own.
    """

    host: str
    pid: int
    node: str
    folder: str


@dataclass(frozen=True, kw_only=True)
class Message:
    """What a worker says.

    Attributes:
        place: Where it is; in the first message.
        version: Its smallvit; in the first message.
        files: Bytes of the files that are new or have changed, by path.
        present: Paths of all files of the run.
        error: Why the run failed.
        ended: Whether this is the last message.
    """

    place: Place | None = None
    version: str = ""
    files: dict[str, bytes] = field(default_factory=dict)
    present: tuple[str, ...] = ()
    error: str = ""
    ended: bool = False


def address_of(on: str) -> str | None:
    """The address in `ray` or `ray://ADDRESS`; None where a Ray is to be found or started.

    Raises:
        ValueError: It is something else.
    """
    name, separator, address = on.partition("://")
    if name != RAY or bool(separator) != bool(address):
        raise ValueError(f"--on is {on!r}: expected ray, or ray://HOST:PORT")
    return address or None


def conduct_on_ray(
    folder: Path,
    address: str | None = None,
    *,
    cores: int | None = None,
    started: Callable[[Member, Place], None] = lambda member, place: None,
    arrived: Callable[[Member], None] = lambda member: None,
    ended: Callable[[Outcome], None] = lambda outcome: None,
) -> bool:
    """Trains what is missing of a set, as many runs at a time as the cluster has room for.

    Args:
        folder: Of a set that `begin` wrote.
        address: Of the cluster's head, such as 10.0.0.5:6379, which this machine belongs to. None
            takes that of RAY_ADDRESS, or starts a Ray of its own on this machine.
        cores: Of each run; by default a GPU's share of them, or without GPUs all of a machine.
        started: Called when a worker begins with a member or goes on with it.
        arrived: Called when files of it came back.
        ended: Called after it is finished or has failed.

    Returns:
        Whether all members were tried; False where a stop was requested.

    Raises:
        ValueError: Another process works on this set.
        ImportError: Ray is not installed.
        ConnectionError: There is no cluster at the address.
    """
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    if address := address or os.environ.get("RAY_ADDRESS"):
        _check_reachable(address)
    ray = require("ray", "ray", "--on ray")
    with alone(folder):
        waiting = unfinished(folder)
        _join(ray, address)
        try:
            share = _share(ray, cores)
            logger.info("each run has %(num_cpus)g cores and %(num_gpus)g GPUs", share)
            task = ray.remote(max_retries=0, **share)(_work)
            task = task.options(num_returns="streaming", _generator_backpressure_num_objects=_AHEAD)
            with stopping() as stop:
                calls = _Calls(ray, task, folder, started, arrived, ended)
                for member in waiting:
                    calls.submit(member)
                while calls.running and not stop.requested:
                    calls.turn()
                return not stop.requested
        finally:
            ray.shutdown()


def _join(ray: Any, address: str | None) -> None:
    """Connects to a cluster, or starts one that no other machine reaches."""
    quiet = {"logging_level": logging.ERROR, "log_to_driver": False}
    if address:
        ray.init(address=address, **quiet)
    else:
        ray.init(include_dashboard=False, _node_ip_address="127.0.0.1", **quiet)


def _check_reachable(address: str) -> None:
    """Refuses at once what Ray itself would try for many minutes."""
    if address in ("auto", "local"):  # as RAY_ADDRESS may say
        return
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=10).close()
    except (OSError, ValueError, OverflowError) as error:
        raise ConnectionError(
            f"there is no Ray cluster at {address}: {error}; expected is the address that "
            "`ray start --head` printed, such as 10.0.0.5:6379"
        ) from error


def _share(ray: Any, cores: int | None) -> dict[str, float]:
    """The cores and GPUs of one run: one GPU where there are any."""
    nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    gpus = sum(node.get("GPU", 0) for node in nodes)
    having = [node for node in nodes if node.get("GPU" if gpus else "CPU", 0) >= 1]
    if not having:
        raise ValueError("the cluster has no cores to train on")
    shares = [node.get("CPU", 1) // (node["GPU"] if gpus else 1) for node in having]
    return {"num_cpus": cores or max(min(shares), 1), "num_gpus": 1 if gpus else 0}


class _Calls:
    """The tasks that are under way, and what comes back from them."""

    def __init__(
        self,
        ray: Any,
        task: Any,
        folder: Path,
        started: Callable[[Member, Place], None],
        arrived: Callable[[Member], None],
        ended: Callable[[Outcome], None],
    ) -> None:
        self._ray, self._task, self._folder = ray, task, folder
        self._started, self._arrived, self._ended = started, arrived, ended
        self._command = read_set(folder).command
        self._losses: dict[str, int] = {}
        self.running: dict[Any, Member] = {}

    def submit(self, member: Member) -> None:
        """Gives a member to some worker, with what is there of it already."""
        note_commit(self._folder, member)
        files, _ = read_files(self._folder / member.folder, {})
        plain = to_plain(member)
        self.running[self._task.remote(plain, files, self._command)] = member

    def turn(self) -> None:
        """Takes one message of each task that has one."""
        ready, _ = self._ray.wait(list(self.running), timeout=_SECONDS, fetch_local=False)
        for call in ready:
            try:
                message = self._ray.get(next(call))
            except self._ray.exceptions.RayTaskError as error:  # not the run: our own code
                self._end(call, str(error.cause or error))
            except (self._ray.exceptions.RayError, StopIteration) as error:
                self._lose(call, error)
            else:
                self._take(call, message)

    def _take(self, call: Any, message: Message) -> None:
        member = self.running[call]
        if message.place is not None:
            if message.version != smallvit.__version__:
                self._ray.cancel(call, force=True)
                theirs = f"smallvit {message.version}; here it is {smallvit.__version__}"
                self._end(call, f"{message.place.host} has {theirs}: install the same")
                return
            self._started(member, message.place)
        if message.files or message.present:
            write_files(self._folder / member.folder, message.files, message.present)
            if any(path.startswith(CHECKPOINTS) for path in message.files):
                self._losses.pop(member.name, None)  # it has come further
            self._arrived(member)
        if message.ended:
            self._end(call, message.error)

    def _lose(self, call: Any, error: Exception) -> None:
        """Another worker goes on with what came back, unless that happens again and again."""
        member = self.running[call]
        reason = str(error).split("\n", 1)[0] or type(error).__name__
        count = self._losses[member.name] = self._losses.get(member.name, 0) + 1
        if count >= _LOSSES:
            self._end(call, f"{count} workers in a row were lost, the last one: {reason}")
            return
        logger.warning("%s: its worker is lost (%s); another one goes on", member.name, reason)
        del self.running[call]
        self.submit(member)

    def _end(self, call: Any, error: str) -> None:
        member = self.running.pop(call)
        self._ended(note_end(self._folder, member, error))


def _work(plain: Mapping[str, Any], files: Mapping[str, bytes], command: str) -> Iterator[Message]:
    """What a worker does: trains in a folder of its own, and sends what is written there."""
    import ray
    import torch

    context = ray.get_runtime_context()
    torch.set_num_threads(max(int(context.get_assigned_resources().get("CPU", 1)), 1))
    member = from_plain(Member, dict(plain))
    with TemporaryDirectory(prefix="smallvit-worker-") as own:
        run = Path(own) / member.folder
        if INFO in files:
            write_files(run, files, tuple(files))
        host, node = socket.gethostname(), context.get_node_id()
        place = Place(host=host, pid=os.getpid(), node=node, folder=own)
        yield Message(place=place, version=smallvit.__version__)
        errors: list[str] = []

        def work() -> None:
            errors.append(try_member(member, run, command) or "")

        # A daemon: a worker that is told to end must not wait for it.
        training = threading.Thread(target=work, daemon=True)
        known: dict[str, tuple[int, int]] = {}
        read_files(run, known)  # what the caller has already
        training.start()
        while training.is_alive():
            training.join(_SECONDS)
            changed, present = read_files(run, known)
            if changed:
                yield Message(files=changed, present=present)
        changed, present = read_files(run, known)
        yield Message(files=changed, present=present, error="".join(errors), ended=True)


def read_files(
    folder: Path, known: dict[str, tuple[int, int]]
) -> tuple[dict[str, bytes], tuple[str, ...]]:
    """Files of a run folder that are new or have changed, and the paths of all.

    run.json is read first: where it says that the run is finished, all others are complete. The log
    is read last: it holds at least what the checkpoints count on.

    Args:
        folder: The run folder, in which somebody may be writing.
        known: Of each path when it was written and its size; brought up to date.
    """
    paths = [*folder.glob("*"), *(folder / CHECKPOINTS).glob("*")]
    names = {path.relative_to(folder).as_posix(): path for path in paths if path.is_file()}
    sent = [each for each in names if not each.endswith(_NOT_SENT) and _OWN.fullmatch(each)]
    changed = {}
    for name in sorted(sent, key=lambda name: (name == LOG, name != INFO)):
        try:
            status = names[name].stat()
            stamp = (status.st_mtime_ns, status.st_size)
            if known.get(name) == stamp:
                continue
            changed[name] = names[name].read_bytes()
        except FileNotFoundError:  # an older checkpoint, removed meanwhile
            sent.remove(name)
            continue
        known[name] = stamp
    return changed, tuple(sent)


def write_files(folder: Path, files: Mapping[str, bytes], present: tuple[str, ...]) -> None:
    """Writes what `read_files` read: whole files, in an order that makes each moment a good one.

    The log comes before the checkpoints that count on it, their tensors before their descriptions,
    and run.json, which says how the run stands, last. Checkpoints that are gone there go here.

    Raises:
        ValueError: A path leads out of the folder.
    """

    def order(name: str) -> tuple[bool, bool, bool]:
        return name == INFO, name.startswith(CHECKPOINTS), name.endswith(".json")

    # A new run is moved to its place whole, as `Run.create` does.
    new = not (folder / INFO).is_file()
    target = folder.with_name(f".new-{folder.name}") if new else folder
    if new:
        shutil.rmtree(target, ignore_errors=True)
    for name in sorted(files, key=order):
        if not _OWN.fullmatch(name) or name in (".", ".."):
            raise ValueError(f"{name!r} is not a file of a run")
        path = target / name
        path.parent.mkdir(parents=True, exist_ok=True)
        write_bytes(path, files[name])
    if new and files:
        os.replace(target, folder)
    kept = {folder / name for name in present}
    for path in sorted((folder / CHECKPOINTS).glob("*")):
        if path not in kept and _OWN.fullmatch(f"{CHECKPOINTS}/{path.name}"):
            path.unlink()
    if (folder / CHECKPOINTS).is_dir() and not any((folder / CHECKPOINTS).iterdir()):
        (folder / CHECKPOINTS).rmdir()
