"""Both ends of the link over real sockets."""

import asyncio
import stat
import threading
from pathlib import Path

import pytest
import zmq
from zmq.utils.monitor import recv_monitor_message

from asyncgrpo.channel.codec import FrameError, decode_to_worker, encode
from asyncgrpo.channel.messages import Hello, Progress, Stop, StopRequested, ToWorker
from asyncgrpo.channel.sockets import TrainerLink, WorkerLink, link_address, request_stop
from asyncgrpo.errors import RunError


def receive(link: TrainerLink):
    for _ in range(600):
        received = link.receive(timeout=0.1)
        if received is not None:
            return received
    raise AssertionError("nothing arrived within 60 s")


@pytest.fixture
def trainer(tmp_path: Path):
    link = TrainerLink(tmp_path)
    yield link
    link.close()


async def echo_worker(address: str) -> list[ToWorker]:
    worker = WorkerLink(address)
    await worker.send(Hello(0, 1, 10))
    answers = [await worker.receive() for _ in range(2)]
    worker.close()
    return answers


def test_a_worker_and_a_trainer_talk(tmp_path: Path, trainer: TrainerLink):
    answers: list[object] = []
    thread = threading.Thread(
        target=lambda: answers.extend(asyncio.run(echo_worker(link_address(tmp_path))))
    )
    thread.start()
    sender, message = receive(trainer)
    assert message == Hello(0, 1, 10)
    trainer.send(sender, Progress(1, 100, 50))
    trainer.broadcast(Stop())
    while thread.is_alive():
        trainer.receive(timeout=0.05)
    thread.join()
    assert answers == [Progress(1, 100, 50), Stop()]


def test_another_thread_wakes_the_receiver_to_send(tmp_path: Path, trainer: TrainerLink):
    with zmq.Context() as context, context.socket(zmq.DEALER) as dealer:
        dealer.connect(link_address(tmp_path))
        dealer.send(encode(Hello(0, 1, 10)))
        sender, _ = receive(trainer)
        threading.Timer(0.2, lambda: trainer.send(sender, Stop())).start()
        assert trainer.receive(timeout=3600) is None  # far longer than a test may take
        assert decode_to_worker(dealer.recv()) == Stop()


def test_the_socket_is_its_owners_only(tmp_path: Path, trainer: TrainerLink):
    assert stat.S_IMODE((tmp_path / "link.sock").stat().st_mode) == 0o600


def test_a_long_run_directory_listens_on_loopback(tmp_path: Path):
    run_dir = tmp_path / ("long" * 30)
    run_dir.mkdir()
    address = link_address(run_dir)
    assert address.startswith("tcp://127.0.0.1:")
    assert link_address(run_dir) == address  # the first answer is everybody's
    trainer = TrainerLink(run_dir)
    request_stop(run_dir)
    assert receive(trainer)[1] == StopRequested()
    with pytest.raises(RunError, match="cannot listen"):
        TrainerLink(run_dir)
    trainer.close()


def test_the_launcher_can_ask_for_a_stop(tmp_path: Path, trainer: TrainerLink):
    request_stop(tmp_path)
    assert receive(trainer)[1] == StopRequested()


def test_a_stop_without_a_trainer_returns(tmp_path: Path):
    request_stop(tmp_path)


def test_garbage_is_an_error_and_the_link_goes_on(tmp_path: Path, trainer: TrainerLink):
    with zmq.Context() as context, context.socket(zmq.DEALER) as dealer:
        dealer.connect(link_address(tmp_path))
        dealer.send(b"GET / HTTP/1.1")
        dealer.send_multipart([b"a", b"b"])
    for expected in ("no message", "2 parts"):
        with pytest.raises(FrameError, match=expected):
            receive(trainer)
    request_stop(tmp_path)
    assert receive(trainer)[1] == StopRequested()


def test_a_link_outlives_a_trainer_that_comes_back(tmp_path: Path):
    async def worker_says_hello_twice() -> None:
        worker = WorkerLink(link_address(tmp_path))
        lost = worker._dealer.get_monitor_socket(zmq.EVENT_DISCONNECTED)
        for number in range(2):
            trainer = TrainerLink(tmp_path)
            sending = worker.send(Hello(number, 1, 10))
            await sending
            _, message = await asyncio.to_thread(receive, trainer)
            assert message == Hello(number, 1, 10)
            trainer.close()
            await recv_monitor_message(lost)  # what is sent to the old one is lost
        worker._dealer.disable_monitor()
        lost.close(0)
        worker.close()

    asyncio.run(worker_says_hello_twice())
