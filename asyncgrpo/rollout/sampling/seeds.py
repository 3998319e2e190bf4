"""Request seeds: unique in a run, and equal when the run is repeated.

    (epoch, position, rollout, turn)  --packed into 63 bits-->  --mixed by the run's seed-->  seed

Packing is injective and mixing is a bijection of the 63-bit integers, so no two requests of
a run share a seed, and neighbours get seeds without a common pattern. vLLM takes a signed
64-bit seed; negative ones are left out because torch folds them onto positive ones.
"""

SEED_BITS = 63
EPOCH_BITS, POSITION_BITS, ROLLOUT_BITS, TURN_BITS = 14, 26, 12, 11  # sum: SEED_BITS

_MASK = (1 << SEED_BITS) - 1
_MULTIPLIERS = (0xBF58476D1CE4E5B9, 0x94D049BB133111EB)  # odd: products mod 2^63 are bijective
_SHIFTS = (30, 27, 31)  # with the multipliers, the finalizer of splitmix64


def request_seed(run_seed: int, *, epoch: int, position: int, rollout: int, turn: int) -> int:
    """The seed of one request, in [0, 2^63).

    Unique within a run while each number fits its field; beyond (epoch 16384, turn 2048, ...)
    the field wraps, which only repeats a seed on another prompt.
    """
    packed = 0
    for value, bits in (
        (epoch, EPOCH_BITS),
        (position, POSITION_BITS),
        (rollout, ROLLOUT_BITS),
        (turn, TURN_BITS),
    ):
        packed = (packed << bits) | (value & ((1 << bits) - 1))
    return _mix(packed ^ _mix(run_seed & _MASK))


def environment_seed(run_seed: int, *, epoch: int, position: int) -> int:
    """The seed for an environment's `reset`: 32 bits, the same for a whole group."""
    seed = request_seed(run_seed, epoch=epoch, position=position, rollout=-1, turn=-1)
    return seed >> (SEED_BITS - 32)


def _mix(value: int) -> int:
    """A bijection of [0, 2^63): each input bit flips about half of the output bits."""
    for shift, multiplier in zip(_SHIFTS, _MULTIPLIERS, strict=False):
        value = ((value ^ (value >> shift)) * multiplier) & _MASK
    return value ^ (value >> _SHIFTS[-1])
