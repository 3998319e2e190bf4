"""The filter as a program: run here on made-up calls, on both architectures."""

import errno

import pytest
from hypothesis import given
from hypothesis import strategies as st

from asyncgrpo.sandbox import seccomp
from asyncgrpo.sandbox.seccomp import ARCHITECTURES, NEWEST, instructions

PID = 4321
REFUSED, UNKNOWN = errno.EPERM, errno.ENOSYS
COLUMN = {"x86_64": 0, "aarch64": 1}
machines = st.sampled_from(list(ARCHITECTURES))


def outcome(machine, number, *arguments, read_only=False, architecture=None):
    """The verdict of the kernel's machine on a call: 0 = allowed, an errno, or "killed"."""
    program = instructions(machine, PID, read_only=read_only)
    data = {0: number, 4: architecture or ARCHITECTURES[machine]}
    data |= {16 + 8 * i: argument for i, argument in enumerate(arguments)}
    at, loaded = 0, 0
    while True:
        code, if_true, if_false, value = program[at]
        if code == seccomp.LOAD:
            loaded = data.get(value, 0)
        elif code == seccomp.RETURN:
            if value == seccomp.ALLOW:
                return 0
            return "killed" if value == seccomp.KILL else value & 0xFFFF
        else:
            holds = {
                seccomp.EQUAL: loaded == value,
                seccomp.ABOVE: loaded > value,
                seccomp.ANY_BIT: bool(loaded & value),
            }[code]
            at += if_true if holds else if_false
        at += 1


def numbers(table, machine):
    found = {name: column[COLUMN[machine]] for name, column in table.items()}
    return {name: number for name, number in found.items() if number is not None}


@pytest.mark.parametrize("machine", ARCHITECTURES)
def test_by_hand(machine):
    call = numbers(seccomp._CALLS, machine)
    assert outcome(machine, call["kill"], PID) == 0
    assert outcome(machine, call["kill"], PID + 1) == REFUSED
    assert outcome(machine, call["kill"], 0xFFFFFFFF) == REFUSED  # -1: everybody
    assert outcome(machine, call["kill"], 0) == REFUSED  # its group
    assert outcome(machine, call["prlimit64"], 0) == outcome(machine, call["prlimit64"], PID) == 0
    assert outcome(machine, call["prlimit64"], 1) == REFUSED
    assert outcome(machine, call["clone"], 0x3D0F00) == 0  # a thread
    assert outcome(machine, call["clone"], 17) == REFUSED  # a process
    assert outcome(machine, 435) == UNKNOWN
    assert outcome(machine, call["prctl"], 1) == REFUSED
    assert outcome(machine, call["prctl"], 15) == 0
    assert outcome(machine, 0, architecture=0x40000003) == "killed"


@given(machines, st.integers(0, 2**32 - 1), st.booleans())
def test_a_call_is_refused_if_and_only_if_it_is_listed(machine, number, read_only):
    table = seccomp._TABLE | (seccomp._WRITING if read_only else {})
    if number > NEWEST or number == 435:
        assert outcome(machine, number, read_only=read_only) == UNKNOWN
    elif number in numbers(table, machine).values():
        assert outcome(machine, number, read_only=read_only) == REFUSED
    elif number not in numbers(seccomp._CALLS, machine).values():
        assert outcome(machine, number, read_only=read_only) == 0


@given(machines, st.integers(0, 2**20))
def test_read_only_refuses_each_way_to_open_for_writing(machine, flags):
    call = numbers(seccomp._CALLS, machine)
    writes = bool(flags & seccomp.WRITE_FLAGS)
    assert outcome(machine, call["openat"], 0, 0, flags) == 0
    assert outcome(machine, call["openat"], 0, 0, flags, read_only=True) == REFUSED * writes
    if "open" in call:
        assert outcome(machine, call["open"], 0, flags, read_only=True) == REFUSED * writes


@pytest.mark.parametrize("machine", ARCHITECTURES)
def test_every_jump_lands_inside_the_program_and_fits_its_byte(machine):
    program = instructions(machine, PID, read_only=True)
    for at, (code, if_true, if_false, _) in enumerate(program):
        if code not in {seccomp.LOAD, seccomp.RETURN}:
            for jump in (if_true, if_false):
                assert 0 <= jump < 256
                assert at + 1 + jump < len(program)
