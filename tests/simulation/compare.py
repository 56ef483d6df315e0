"""The model against the picture: equal while nothing was lost, and after a crash no worse than was promised."""

from __future__ import annotations

from tests.simulation.dead_lettering import DEAD_LETTER_BACKOFF
from tests.simulation.facts import Facts
from tests.simulation.mail import Is, Life, Mail, Queue, must
from tests.simulation.model import Model
from tests.simulation.picture import Picture


def check_same(model: Model, picture: Picture) -> None:
    """The store holds exactly what the model holds."""
    must(set(model.queues) == set(picture.queues), f"queues {set(picture.queues)}, not {set(model.queues)}")
    for name, queue in model.queues.items():
        _same_queue(queue, picture.queues[name])


def _same_queue(queue: Queue, stored: Queue) -> None:
    name = queue.name
    must(set(queue.groups) == set(stored.groups), f"{name}: groups {set(stored.groups)}, not {set(queue.groups)}")
    must(queue.next_seq == stored.next_seq, f"{name}: next sequences {stored.next_seq}, not {queue.next_seq}")
    missing, extra = set(queue.mails) - set(stored.mails), set(stored.mails) - set(queue.mails)
    must(not missing, f"{name}: lost {[queue.mails[i] for i in list(missing)[:2]]}")
    must(not extra, f"{name}: should be gone {[stored.mails[i] for i in list(extra)[:2]]}")
    for group in queue.cursors():
        other = stored.groups[group.name]
        must(group.committed == other.committed, f"{name}/{group.name}: at {other.committed}, not {group.committed}")
    for message_id, mail in queue.mails.items():
        _same_mail(mail, stored.mails[message_id])


def _same_mail(mail: Mail, stored: Mail) -> None:
    for field in (
        "partition",
        "seq",
        "priority",
        "key",
        "message_id",
        "enqueued_at",
        "expires_at",
        "size",
        "listed",
        "scheduled",
        "why",
        "seed",
    ):
        one, other = getattr(mail, field), getattr(stored, field)
        must(one == other, f"{mail.queue}: message {mail.id} has {field} {other!r}, not {one!r}")
    if not mail.listed:
        return
    must(set(mail.lives) == set(stored.lives), f"{mail.queue}: {mail.id} is for {set(stored.lives)}: {mail}")
    for group, life in mail.lives.items():
        _same_life(f"{mail.queue}/{group}: message {mail.id}", life, stored.lives[group])


def _same_life(what: str, life: Life, stored: Life) -> None:
    state = stored.state
    if state is Is.BACKING_OFF and life.state is Is.READY and life.ready_at == stored.ready_at:
        state = Is.READY  # the clock went back after it was ready; what is stored is the time alone
    if life.state is Is.BACKING_OFF and state is Is.READY and life.ready_at == stored.ready_at:
        return  # due, and nobody has ticked yet
    must(life.state is state, f"{what} is {stored}, not {life}")
    if not life.over:
        must(life.kept == stored.kept, f"{what} keeps {stored.kept}, not {life.kept}")
        must(life.failures == stored.failures, f"{what} has failed {stored.failures} times, not {life.failures}")
    if life.state is Is.LEASED:
        same = (life.token, life.deadline, life.consumer) == (stored.token, stored.deadline, stored.consumer)
        must(same, f"{what} is leased as {stored}, not {life}")
    if life.state in (Is.BACKING_OFF, Is.DEAD_LETTERING):
        must(life.ready_at == stored.ready_at, f"{what} waits until {stored.ready_at}, not {life.ready_at}")


def adopt(model: Model, picture: Picture, doubt: bool) -> None:
    """After a crash: check that nothing promised is lost and nothing ended is back, then go on from what is stored.

    `doubt`: an operation was cut short, so that anything it might have done may have happened.
    """
    facts = model.facts
    _check_groups(facts, picture, doubt)
    for name, queue in model.queues.items():
        stored = picture.queues.get(name)
        if stored is None:
            lost = [i for i, where in facts.ids.items() if where == name and i in queue.mails]
            must(not lost, f"queue {name} is lost with {lost}")
            continue
        for mail in queue.mails.values():
            _check_kept(facts, mail, queue, stored, doubt)
    for name, stored in picture.queues.items():
        # A dead queue may have refused something just before.
        rested = model.queues[name].dead_lettering_paused.values() if name in model.queues else ()
        until = max((picture.now + DEAD_LETTER_BACKOFF, stored.rests_until, *rested))
        stored.dead_lettering_paused = dict.fromkeys(range(len(stored.next_seq)), until)
        if doubt:
            before = model.queues[name].next_seq if name in model.queues else [1] * len(stored.next_seq)
            taken = sum(max(now - then, 0) for now, then in zip(stored.next_seq, before, strict=True))
            facts.unseen[name] = facts.unseen.get(name, 0) + taken
        for mail in stored.mails.values():
            _check_known(facts, model, mail, stored, doubt)
    _check_swaps(model, picture)
    _take_over_facts(model, picture)
    model.queues = picture.queues
    model.expected = {}


def _check_groups(facts: Facts, picture: Picture, doubt: bool) -> None:
    there = {(name, group.number) for name, queue in picture.queues.items() for group in queue.groups.values()}
    lost = facts.groups - facts.groups_gone - there - facts.new_groups_gone
    must(not lost or doubt, f"groups {lost} are lost")
    back = facts.groups_gone & there
    must(not back, f"groups {back} are back")
    facts.groups_gone |= facts.groups - there
    facts.groups |= there


def _check_kept(facts: Facts, mail: Mail, queue: Queue, stored: Queue, doubt: bool) -> None:
    """A message that was stored before the crash: it is still there for everyone who had not ended it.

    In doubt it may have ended in an operation that was cut short; how, the journal knows.
    """
    after = stored.mails.get(mail.id)
    there = {group.number: group for group in stored.groups.values()}
    lost: list[int] = []
    for name, life in mail.lives.items():
        number = queue.groups[name].number
        if not life.over and number in there and (after is None or after.lives[name].over):
            lost.append(number)
    for cursor in queue.cursors():
        known = there.get(cursor.number)
        if known is not None and cursor.sees(mail) and (after is None or not known.sees(after)):
            lost.append(cursor.number)
    if after is None and not mail.needed() and not queue.kept(mail) and mail.listed:
        lost.append(-1)
    must(not lost or doubt or mail.id not in facts.ids, f"{queue.name}: confirmed {mail} is lost in {lost}")
    for number in lost:
        facts.new_ends.setdefault((queue.name, mail.id, number), "?")


def _check_known(facts: Facts, model: Model, mail: Mail, stored: Queue, doubt: bool) -> None:
    """A message that is stored after the crash."""
    must(mail.id not in facts.gone, f"{stored.name}: {mail.id} is back after it was removed")
    known = mail.id in facts.ids or mail.id in facts.new_ids
    must(known or doubt, f"{stored.name}: message {mail.id} appeared from nowhere")
    if not known:
        facts.ids[mail.id] = stored.name
        facts.doubtful.add(mail.id)
        if mail.source is not None:
            model.dead_letters[mail.source] = mail.id
    for group, life in mail.lives.items():
        number = stored.groups[group].number
        kind = facts.ends.get((stored.name, mail.id, number))
        must(life.over or kind in (None, "?"), f"{stored.name}/{group}: {mail.id} ended {kind} and is back: {life}")
        least = facts.failures.get((mail.id, number), 0)
        must(life.over or life.failures >= least, f"{stored.name}/{group}: {mail.id} forgot failures: {life}, {least}")
        etag = life.kept.etag if life.kept is not None else 0
        known_etag = facts.etags.get((mail.id, number), 0)
        must(life.over or etag >= known_etag, f"{stored.name}/{group}: {mail.id} lost state {known_etag}: {life}")


def _check_swaps(model: Model, picture: Picture) -> None:
    """A letter and what it was redriven to change places: one of the two came through the crash."""
    for dead, dead_letter, target, message_id in model.swaps:
        back = dead in picture.queues and dead_letter in picture.queues[dead].mails
        there = came_through(model, picture, target, message_id)
        # If the letter itself was lost, its source is back.
        kept = dead_letter in model.facts.ids
        must(
            back != there if kept else not (back and there),
            f"{dead}: {dead_letter} redriven to {message_id}: letter {back}, message {there}",
        )
    model.swaps = []


def _take_over_facts(model: Model, picture: Picture) -> None:
    """Of what was not confirmed, what has survived is confirmed now: it is in what a restart found."""
    facts = model.facts
    survived = {i: name for i, name in facts.new_ids.items() if came_through(model, picture, name, i)}
    for (name, message_id, number), kind in facts.new_ends.items():
        if message_id not in facts.ids and message_id not in survived:
            continue
        stored = picture.queues.get(name)
        if stored is not None and number < stored.groups_made and not _open(stored, message_id, number):
            facts.ends[name, message_id, number] = kind
    facts.ids.update(survived)
    model.dead_letters = {
        source: dead_letter for source, dead_letter in model.dead_letters.items() if dead_letter in facts.ids
    }
    model.places = {message_id: place for message_id, place in model.places.items() if message_id in facts.ids}
    for stored in picture.queues.values():
        model.places.update((mail.id, (mail.partition, mail.seq)) for mail in stored.mails.values())
    facts.forget()


def came_through(model: Model, picture: Picture, name: str, message_id: int) -> bool:
    """Whether an unconfirmed message came through the crash: it is there, or its sequence was taken and it ended."""
    stored = picture.queues.get(name)
    if stored is None:
        return False
    if message_id in stored.mails:
        return True
    place = model.places.get(message_id)
    return place is not None and stored.next_seq[place[0]] > place[1]


def _open(queue: Queue, message_id: int, number: int) -> bool:
    """Whether a message is still to be settled in a group."""
    mail = queue.mails.get(message_id)
    if mail is None:
        return False
    if number < 0:
        return mail.listed
    group = next((group for group in queue.groups.values() if group.number == number), None)
    if group is None:
        return False
    if group.cursor:
        return group.sees(mail)
    return group.name in mail.lives and not mail.lives[group.name].over
