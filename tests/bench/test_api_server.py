"""B14's arithmetic: medians of bursts, and speeds compared block by block."""

import pytest

from tests.bench.api_server import Burst, figures


def burst(*, wall_s: float, server_us: float = 50.0) -> Burst:
    tokens = 1000
    return Burst(
        tokens=tokens,
        wall_s=wall_s,
        server_cpu_s=tokens * server_us / 1e6,
        engine_cpu_s=0.2,
        client_cpu_s=0.003,
    )


def by_name(**walls: list[float]) -> dict[str, float]:
    bursts = {
        (how, k): [burst(wall_s=wall) for wall in walls.get(f"{how}_{k}", [1.0, 1.0])]
        for how in ("packed", "generate")
        for k in (0, 8)
    }
    return {figure.what: figure.value for figure in figures(bursts)}


def test_a_steady_drift_within_a_block_cancels():
    # K = 0, 8, 8, 0 on a machine that slows down by a tenth each time
    found = by_name(packed_0=[1.0, 1.3], packed_8=[1.1, 1.2])
    assert found["packed: tokens/s at K = 8 over K = 0"] == pytest.approx(1.0)


def test_the_median_block_counts():
    found = by_name(packed_0=[1.0] * 6, packed_8=[1.25, 1.25, 9.0, 9.0, 1.0, 1.0])
    assert found["packed: tokens/s at K = 8 over K = 0"] == pytest.approx(0.8)


def test_times_are_per_token_and_only_two_figures_have_a_bar():
    bursts = {
        (how, k): [burst(wall_s=0.5, server_us=us) for us in (40, 70, 50)]
        for how in ("packed", "generate")
        for k in (0, 8)
    }
    found = {figure.what: figure for figure in figures(bursts)}
    judged = {what: figure.bar for what, figure in found.items() if figure.bar is not None}
    assert judged == {
        "packed, K = 8: API server CPU per token": 80,
        "packed: tokens/s at K = 8 over K = 0": 0.95,
    }
    assert found["packed, K = 8: API server CPU per token"].value == pytest.approx(50)
    assert found["generate, K = 0: engine CPU per token"].value == pytest.approx(200)
    assert found["packed, K = 0"].value == pytest.approx(2000)
    share = found["packed: CPU of server and engine per token at K = 0 over K = 8"].value
    assert share == pytest.approx(1)
