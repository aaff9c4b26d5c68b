"""Bugs to plant in the protocol, each of which `troth chaos` must find: a checker that cannot fail checks nothing."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from typing import Any

from tests.workshop.chaos.planted import announcing, codes, door, judging, recovery

Plant = Callable[[], AbstractContextManager[Any]]

PLANTED: Mapping[str, Plant] = {
    "a chain accepted one signature short": announcing.one_signature_short,
    "a certificate exempt from the chain rule": announcing.certificate_exempt,
    "certificates kept to oneself (quiet deciders that leave the others alone)": announcing.certificates_kept,
    "a certificate trusted without its signatures": announcing.certificate_unchecked,
    "the first of two equivocating values taken": announcing.first_of_two_taken,
    "V2 skipped": judging.v2_skipped,
    "V1 skipped": judging.v1_skipped,
    "votes counted from those already out": judging.banned_go_on_voting,
    "a single coin": judging.single_coin,
    "a ban applied one step early at one peer": judging.ban_one_step_early_at_one_peer,
    "a coin reused across attempts": judging.coin_reused,
    "V2's threshold computed from local floats": judging.v2_with_local_floats,
    "a slot signed again after a crash": recovery.signed_again_after_a_crash,
    "deadlines taken from the local clock": announcing.deadline_from_the_local_clock,
    "everyone keeps the timeouts that it measured itself": announcing.timeouts_of_ones_own,
    "who has left is not audited": judging.absent_not_audited,
    "an owed audit forgotten": judging.owed_audits_dropped,
    "who worked beside a liar is not audited": judging.liars_step_forgotten,
    "a minority goes on": recovery.minority_goes_on,
    "audits not heard": judging.audits_unheard,
    "relays not passed on": announcing.relays_not_passed_on,
    "who came back is not audited": judging.returned_not_audited,
    "an onlooker believes the first who tells it": recovery.first_teller_believed,
    "a request to come back counts whoever signed it": recovery.requests_unchecked,
    "link disputes not remembered": recovery.link_disputes_not_remembered,
    "Merkle paths not checked": judging.paths_unchecked,
    "records not compared when they are signed": recovery.record_not_compared,
    "a step goes on without the certificate of the record before": recovery.without_a_certificate,
    "an undecided aggregate is not said again": recovery.not_said_again,
    "a quorum is more than half of those left": recovery.majority_of_those_left,
    "a run begins anew with a quorum": recovery.begins_with_a_quorum,
    "a step made again under the same incarnation": recovery.same_incarnation,
    "audits stay due when a run begins anew": recovery.audits_due_after_a_restart,
    "what was signed is not taken from those who wait": recovery.nothing_borrowed,
    "a record key erased too soon": recovery.keys_erased_too_soon,
    "half a probation is enough": door.half_a_probation,
    "a missed step on probation counts as work": door.misses_count_as_work,
    "misses on probation are not counted": door.misses_not_counted,
    "candidates are not audited": door.candidates_unaudited,
    "a candidate's commitment counts whoever signed it": door.probes_unsigned,
    "seeds not bound to keys": door.seeds_for_all,
    "tickets without work": door.tickets_without_work,
    "tickets under somebody else's key": door.tickets_unsigned,
    "tickets for any draw": door.tickets_for_any_draw,
    "slots given away in every step": door.slots_in_every_step,
    "all who are done come in at once": door.all_who_are_done,
    "banned strangers knock again": door.banned_knock_again,
    "everyone who ever came in has a seat": door.everyone_who_ever_came,
    "the ban of a stranger is a liar less": door.strangers_bans_count,
    "an owner speaks without judging itself": judging.speaks_without_judging_itself,
    "a ban that rests on judgement is a liar less": recovery.refutable_bans_lower_l,
    "a pause outrun": recovery.pause_without_rest,
    "a walk begins with moments of its own": judging.walks_from_moments_of_their_own,
    "gradients rounded by private numbers": codes.rounded_privately,
    "aggregates read in whatever exponents": codes.any_exponents,
    "drawn leaves not judged": codes.leaves_unjudged,
    "jurors judge no single number": codes.judged_as_a_whole,
}

NOT_PLANTED: Mapping[str, str] = {  # with the reason
    "a gradient's code of −128, or with a larger exponent than it needs, is read": "It breaks nothing: all read the same "
    "numbers, and audits compare bytes. tests/clip/test_blocks.py has it.",
    "votes counted from those who are out since an earlier attempt of the same step": "It breaks nothing: a verdict needs a "
    "quorum of the members at step start, in or out (T4), and liars are fewer than that.",
    "a value, not a certificate, accepted one signature short": "It breaks nothing: f liars make f − 1 signatures beside "
    "its originator, so the last round is to spare for values (decision 11).",
    "link disputes never forgotten": "They end after 1000 steps, and no world is that long.",
    "a ban does not reach the successor key": "A key's work is judged at most two steps later (R4, R7), and its holder is "
    "back under another three steps later at the earliest, or two if it does not observe. So it takes an audit that was lost "
    "and done in the very step of the return, of a liar that comes back: none is drawn. "
    "tests/protocol/recovery/test_member.py has it.",
    "b stays when strangers come in": "In a run of eight that withstands three, b is four with the third newcomer; no world "
    "takes in as many with so many liars. The checker counts it; tests/protocol/recovery/test_door_attacks.py has it.",
    "who comes back does not count at the door": "Somebody has to go and come back, and another one to be done, within one "
    "probation, which hardly any world brings together. tests/protocol/recovery/test_door_attacks.py has it.",
    "an unbounded update": "Worlds train with SGD, whose steps are as long as what U3 limits lets them be, on tasks without "
    "dark coordinates: no step is shortened, and none is longer without U7. tests/workshop/simulation/test_step_bounds.py and "
    "tests/training/test_step_bounds.py have it.",
    "no alarm": "Plans promise to withstand all of their liars, so that only another bug could ban more members than that. The "
    "checker counts it; tests/protocol/core/test_alarm.py has it.",
    "a candidate's gradient averaged": "Parts go from contributors to owners, and nothing that a candidate sends is one.",
    "an old record taken for new, a standing that nobody signed, chunks of a state not checked": "A liar's word has to come "
    "first, and the next record to fit what it said. tests/protocol/recovery/test_following.py plants them, and finds them.",
}


@contextmanager
def planted(name: str) -> Iterator[None]:
    with PLANTED[name]():
        yield
