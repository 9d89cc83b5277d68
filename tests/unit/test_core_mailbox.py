"""The mailbox in memory: a sorted copy of the rows."""

import hypothesis.strategies as st
from hypothesis import given

from turndock.types.v1 import Event, Run
from turndock_server.core.mailbox import Mailbox


def ids(mailbox: Mailbox) -> list[str]:
    return [run.id for run in mailbox.runs()]


def test_runs_stand_where_their_queue_key_says_in_whatever_order_they_are_told() -> None:
    mailbox = Mailbox()
    for run_id, key in (("b", 20), ("c", 30), ("front", -1), ("a", 10)):
        mailbox.put(Run(id=run_id, queue_key=key))
    assert ids(mailbox) == ["front", "a", "b", "c"]
    assert (first := mailbox.next()) is not None
    assert first.id == "front"
    assert len(mailbox) == 4


def test_a_run_that_is_told_again_takes_its_new_place_and_prompt() -> None:
    mailbox = Mailbox()
    for run_id, key in (("a", 10), ("b", 20)):
        mailbox.put(Run(id=run_id, queue_key=key, prompt="old"))
    mailbox.put(Run(id="a", queue_key=30, prompt="new"))
    assert [(run.id, run.prompt) for run in mailbox.runs()] == [("b", "old"), ("a", "new")]


def test_equal_places_are_told_apart_by_the_time_of_acceptance() -> None:
    mailbox = Mailbox()
    mailbox.put(Run(id="late", queue_key=1, created_at_us=2))
    mailbox.put(Run(id="early", queue_key=1, created_at_us=1))
    assert ids(mailbox) == ["early", "late"]


def test_a_run_can_be_taken_out_wherever_it_stands() -> None:
    mailbox = Mailbox()
    for key, run_id in enumerate("abc"):
        mailbox.put(Run(id=run_id, queue_key=key))
    assert (taken := mailbox.remove("b")) is not None
    assert taken.id == "b"
    assert mailbox.remove("b") is None
    assert ids(mailbox) == ["a", "c"]
    assert Mailbox().next() is None


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(-5, 5))))
def test_the_mailbox_is_a_sorted_dictionary(told: list[tuple[int, int]]) -> None:
    mailbox, model = Mailbox(), dict[str, int]()
    for number, key in told:
        mailbox.put(Run(id=str(number), queue_key=key, created_at_us=number))
        model[str(number)] = key
    assert ids(mailbox) == sorted(model, key=lambda run_id: (model[run_id], int(run_id)))


def test_notifications_are_taken_in_the_order_in_which_they_came() -> None:
    mailbox = Mailbox()
    for number in range(3):
        mailbox.notify(Event(sequence=number))
    assert mailbox.pending_notifications == 3
    taken = [mailbox.take_notification() for _ in range(3)]
    assert [event.sequence for event in taken if event is not None] == [0, 1, 2]
    assert mailbox.take_notification() is None
