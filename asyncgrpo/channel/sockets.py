"""The link of worker, trainer and launcher: a ROUTER at the trainer, DEALERs elsewhere.

    WorkerLink (asyncio)  --ToTrainer-->  TrainerLink (rank 0)  --ToWorker-->  WorkerLink
    request_stop          --StopRequested-->

The address follows from the run directory alone, so each side may start first: ZeroMQ
connects when the other is there, and again when it comes back.

The address is `ipc://RUN_DIR/link.sock`, readable by its owner only. Where the path is too long for
a unix socket, it is `tcp://127.0.0.1:PORT`; the first process to ask writes the port to
`RUN_DIR/link.json`.
"""

import os
import socket
import threading
from pathlib import Path
from typing import Final

import msgspec
import zmq
import zmq.asyncio

from asyncgrpo.channel.codec import FrameError, decode_to_trainer, decode_to_worker, encode
from asyncgrpo.channel.memory import keep_freed_memory
from asyncgrpo.channel.messages import Hello, StopRequested, ToTrainer, ToWorker
from asyncgrpo.errors import RunError

SOCKET_NAME: Final = "link.sock"
ADDRESS_NAME: Final = "link.json"
LONGEST_SOCKET_PATH: Final = 100  # sun_path is 108 bytes on Linux, 104 on macOS
OWNER_ONLY: Final = 0o177  # umask: the socket file gets mode 0600
COPIED_BYTES: Final = 64 * 1024  # a frame shorter than this is copied sooner than shared
LINGER_MS: Final = 2000  # a closing side waits this long for its last messages to leave

Sender = bytes  # the ROUTER's name for a peer; a new one after each reconnect


class _Address(msgspec.Struct, frozen=True):
    address: str


def link_address(run_dir: Path) -> str:
    """The address of the trainer of `run_dir`, the same in every process of the run."""
    path = Path(run_dir).resolve() / SOCKET_NAME
    if len(os.fsencode(path)) <= LONGEST_SOCKET_PATH:
        return f"ipc://{path}"
    return _tcp_address(path.parent / ADDRESS_NAME)


class TrainerLink:
    """Rank 0's end. One thread receives; any thread may send."""

    def __init__(self, run_dir: Path) -> None:
        keep_freed_memory()
        self._context = zmq.Context()
        self._router = self._context.socket(zmq.ROUTER)
        self._router.setsockopt(zmq.LINGER, LINGER_MS)
        self._router.setsockopt(zmq.SNDHWM, 0)
        _bind(self._router, link_address(run_dir), Path(run_dir))
        # A ZeroMQ socket belongs to one thread: messages of others pass through an inner pipe,
        # which also wakes the receiver.
        self._outbox_sender = self._context.socket(zmq.PAIR)
        self._outbox = self._context.socket(zmq.PAIR)
        self._outbox.bind("inproc://outbox")
        self._outbox_sender.connect("inproc://outbox")
        self._send_lock = threading.Lock()
        self._peers: dict[Sender, None] = {}
        self._poller = zmq.Poller()
        self._poller.register(self._router, zmq.POLLIN)
        self._poller.register(self._outbox, zmq.POLLIN)

    def receive(self, timeout: float) -> tuple[Sender, ToTrainer] | None:
        """The next message and its sender; None after `timeout` seconds or a wake-up.

        Raises FrameError for a frame that is no message; the next call goes on after it.
        """
        ready = dict(self._poller.poll(int(timeout * 1000)))
        if self._outbox in ready:
            self._flush()
        if self._router not in ready:
            return None
        # A group's frame may be megabytes: its samples' arrays lie where ZeroMQ received it.
        name, *frames = self._router.recv_multipart(copy=False)
        if len(frames) != 1:
            raise FrameError(f"a message of {len(frames)} parts on the link, expected 1")
        sender, message = name.bytes, decode_to_trainer(frames[0].buffer)
        if isinstance(message, Hello):
            self._peers[sender] = None
        return sender, message

    def send(self, sender: Sender, message: ToWorker) -> None:
        """Queues `message` for the peer `sender`; dropped if the peer has gone."""
        frame = encode(message)
        with self._send_lock:
            self._outbox_sender.send_multipart([sender, frame])

    def broadcast(self, message: ToWorker) -> None:
        """Queues `message` for every worker that sent Hello."""
        for peer in tuple(self._peers):
            self.send(peer, message)

    def wake(self) -> None:
        """Makes a waiting `receive` return now."""
        with self._send_lock:
            self._outbox_sender.send_multipart([b""])

    def close(self) -> None:
        """Sends the queued messages (2 s at most) and closes; no thread may be receiving."""
        self._flush()
        for each in (self._outbox_sender, self._outbox, self._router):
            each.close()
        self._context.term()

    def _flush(self) -> None:
        while True:
            try:
                parts = self._outbox.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                return
            if len(parts) == 2:
                self._router.send_multipart(parts)


class WorkerLink:
    """A worker's end, on its event loop. It connects and reconnects by itself."""

    def __init__(self, address: str) -> None:
        keep_freed_memory()
        self._context = zmq.asyncio.Context()
        self._dealer = self._context.socket(zmq.DEALER)
        self._dealer.setsockopt(zmq.LINGER, LINGER_MS)
        self._dealer.connect(address)

    async def send(self, message: ToTrainer) -> None:
        """Queues `message`; waits while a thousand are queued already."""
        frame = encode(message)
        await self._dealer.send(frame, copy=len(frame) < COPIED_BYTES)

    async def receive(self) -> ToWorker:
        """The trainer's next message; FrameError where it cannot be read."""
        frames = await self._dealer.recv_multipart()
        if len(frames) != 1:
            raise FrameError(f"a message of {len(frames)} parts on the link, expected 1")
        return decode_to_worker(frames[0])

    def close(self) -> None:
        """Sends the queued messages (2 s at most) and closes."""
        self._dealer.close()
        self._context.term()


def request_stop(run_dir: Path) -> None:
    """Asks the trainer of `run_dir` to finish its step, checkpoint and stop.

    Returns once the message has left, or after 2 s where no trainer listens.
    """
    with zmq.Context() as context, context.socket(zmq.DEALER) as dealer:
        dealer.setsockopt(zmq.LINGER, LINGER_MS)
        dealer.connect(link_address(run_dir))
        dealer.send(encode(StopRequested()))


def _bind(router: "zmq.Socket[bytes]", address: str, run_dir: Path) -> None:
    previous = os.umask(OWNER_ONLY)
    try:
        router.bind(address)
    except zmq.ZMQError as error:
        if address.startswith("tcp://"):
            (run_dir / ADDRESS_NAME).unlink(missing_ok=True)
        raise RunError(
            f"the trainer cannot listen at {address}: {error.strerror}; is another trainer of this "
            f"run directory alive? Otherwise start again with `asyncgrpo resume`"
        ) from error
    finally:
        os.umask(previous)


def _tcp_address(file: Path) -> str:
    """The address in `file`; the first process chooses a free port and writes it."""
    if not file.exists():
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        draft = file.with_name(f"{file.name}.{os.getpid()}")
        draft.write_bytes(msgspec.json.encode(_Address(f"tcp://127.0.0.1:{port}")))
        try:
            os.link(draft, file)  # atomic, and refused where another process was first
        except FileExistsError:
            pass
        finally:
            draft.unlink()
    try:
        return msgspec.json.decode(file.read_bytes(), type=_Address).address
    except msgspec.DecodeError as error:
        raise RunError(f"{file} is damaged ({error}); delete it and resume the run") from error
