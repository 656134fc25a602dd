"""Between the two threads: nothing is lost, nothing piles up, and nobody waits for somebody who is gone."""

from __future__ import annotations

import threading

import torch

from peer.mailbox import Anchor, Mailbox
from protocol.schedule import Window


def anchor(chunk: int, due: int = 1, links: int = 1, mix: bool = True) -> Anchor:
    return Anchor(chunk, due, links, mix, torch.full((2,), float(due)))


def test_a_newer_anchor_takes_the_place_of_one_not_picked_up() -> None:
    box = Mailbox()
    box.put_anchor(anchor(3, due=10, links=1, mix=True))
    box.put_anchor(anchor(1, due=10))
    box.put_anchor(anchor(3, due=20, links=2, mix=False))
    first, second = box.take()[0]
    assert first.chunk == 1
    assert (second.chunk, second.due, second.links, second.mix) == (3, 20, 3, True)
    assert second.values[0] == 20
    assert box.take() == ([], [])


def test_noticed_windows_stay_when_only_anchors_are_taken() -> None:
    box = Mailbox()
    for due in (20, 10, 20):
        box.notice(Window(0, due))
    box.put_anchor(anchor(0))
    assert [one.chunk for one in box.take_anchors()] == [0]
    assert box.take() == ([], [Window(0, 10), Window(0, 20)])


def test_two_threads_lose_nothing() -> None:
    box, links, number = Mailbox(), 0, 2000

    def put() -> None:
        for due in range(number):
            box.put_anchor(anchor(due % 3, due))

    writer = threading.Thread(target=put)
    writer.start()
    while writer.is_alive():
        box.wait(0.01)
        links += sum(one.links for one in box.take_anchors())
    writer.join()
    links += sum(one.links for one in box.take_anchors())
    assert links == number


def test_a_waiting_trainer_is_woken_by_mail_and_by_the_end() -> None:
    for wake in (lambda box: box.put_anchor(anchor(0)), lambda box: box.fail("p2pd is gone")):
        box = Mailbox()
        waiter = threading.Thread(target=box.wait, args=(30.0,))
        waiter.start()
        wake(box)
        waiter.join(5.0)
        assert not waiter.is_alive()
        box.wait(30.0)  # and once woken it does not wait again


def test_a_notice_does_not_end_a_wait_for_anchors() -> None:
    box = Mailbox()
    box.notice(Window(0, 6))
    box.wait(0.01)
    assert box.take() == ([], [Window(0, 6)])


def test_windows_to_be_tried_again_are_taken_once() -> None:
    box = Mailbox()
    box.retry(Window(1, 30))
    assert box.take() == ([], [])
    assert box.take_retries() == [Window(1, 30)]
    assert box.take_retries() == []
