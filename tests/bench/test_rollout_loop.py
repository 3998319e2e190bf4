"""B4: every endpoint's answers become samples, and only what has a bar is judged."""

import pytest

from asyncgrpo.records import SamplingParams
from asyncgrpo.server.api import Endpoint
from asyncgrpo.server.turns_json import completions_turn, generate_turn
from asyncgrpo.server.turns_packed import packed_turn
from tests.bench import rollout_loop
from tests.bench.instant_server import answer
from tests.bench.rollout_loop import Case, Speed, figures, measure


@pytest.mark.parametrize("num_top", [0, 8])
def test_the_instant_servers_three_answers_are_one_turn(num_top: int):
    sampling = SamplingParams(num_logprobs=num_top)
    packed, generated, completed = (
        decode(answer(endpoint, 32, num_top).partition(b"\r\n\r\n")[2], sampling)
        for endpoint, decode in (
            (Endpoint.PACKED, packed_turn),
            (Endpoint.GENERATE, generate_turn),
            (Endpoint.COMPLETIONS, completions_turn),
        )
    )
    assert packed.output_ids.size == 32
    for turn in (generated, completed):
        assert turn.output_ids.tolist() == packed.output_ids.tolist()
        assert turn.logprobs == pytest.approx(packed.logprobs)
        if num_top:
            assert turn.top_logprobs == pytest.approx(packed.top_logprobs)


@pytest.mark.parametrize("endpoint", [Endpoint.PACKED, Endpoint.COMPLETIONS])
def test_every_rollout_becomes_a_sample(endpoint: Endpoint, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(Case, "num_groups", 2)
    found = measure([Case(16, 8, endpoint)], repeats=1)  # asserts the number of samples
    assert all(figure.value > 0 for figure in found)


def test_the_median_run_is_held_against_the_bars():
    case = Case(256, 0, Endpoint.PACKED)
    speeds = [Speed(1000, cpu_s, 2.0) for cpu_s in (0.9, 1.0, 3.0)]
    by_name = {figure.what: figure for figure in figures(case, speeds)}
    times_trl = by_name[f"{case.name}: times TRL 1.16"]
    assert times_trl.value == pytest.approx(1000 / rollout_loop.TRL_PER_CPU_S[256])
    assert times_trl.bar == 5.0
