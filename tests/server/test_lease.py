"""The lease: one holder at a time, which renews it or loses it."""

from hypothesis import given
from hypothesis import strategies as st

from asyncgrpo.server.lease import LEASE_S, Claim, Holder, Lease

A, B = Claim("a", "run a"), Claim("b", "run b")
A_ENDS = Claim("a", "run a", release=True)


def test_the_first_gets_it_and_the_second_is_told_who_has_it():
    lease = Lease()
    assert lease.answer(A, 100.0) == Holder("a", "run a", 0.0)
    assert lease.answer(B, 103.0) == Holder("a", "run a", 3.0)
    assert lease.answer(A, 104.0) == Holder("a", "run a", 0.0)


def test_who_does_not_renew_loses_it():
    lease = Lease()
    lease.answer(A, 0.0)
    assert lease.answer(B, LEASE_S).owner == "a"
    assert lease.answer(B, LEASE_S + 0.1).owner == "b"
    assert lease.answer(A, LEASE_S + 0.2).owner == "b"  # it comes too late


def test_given_back_it_is_free():
    lease = Lease()
    lease.answer(A, 0.0)
    assert lease.answer(A_ENDS, 1.0) == Holder()
    assert lease.answer(B, 1.0).owner == "b"
    assert lease.answer(A_ENDS, 2.0).owner == "b"  # nobody gives back what another holds


def test_giving_back_what_nobody_holds_takes_nothing():
    lease = Lease()
    assert lease.answer(A_ENDS, 0.0) == Holder()
    assert lease.answer(B, 0.0).owner == "b"


@given(
    st.lists(
        st.tuples(st.sampled_from("abc"), st.booleans(), st.floats(0, 2 * LEASE_S)), max_size=30
    )
)
def test_nobody_takes_it_from_a_holder_that_renews_in_time(claims):
    lease, now, holder, renewed = Lease(), 0.0, "", 0.0
    for owner, release, seconds in claims:
        now += seconds
        got = lease.answer(Claim(owner, owner, release), now)
        if holder and owner != holder and now - renewed <= LEASE_S:
            assert got.owner == holder
        elif not release:
            assert got.owner == owner
        if got.owner != holder or owner == holder:
            holder, renewed = got.owner, now
