"""`/metrics` of one engine by hand, then of several, then of servers that say less."""

from hypothesis import given
from hypothesis import strategies as st

from asyncgrpo.server.load import parse_load

ONE_ENGINE = """
# HELP vllm:num_requests_running Number of requests in model execution batches.
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="m"} 12.0
# TYPE vllm:num_requests_waiting gauge
vllm:num_requests_waiting{engine="0",model_name="m"} 3.0
# TYPE vllm:num_requests_waiting_by_reason gauge
vllm:num_requests_waiting_by_reason{engine="0",model_name="m",reason="capacity"} 3.0
# TYPE vllm:kv_cache_usage_perc gauge
vllm:kv_cache_usage_perc{engine="0",model_name="m"} 0.625
# TYPE vllm:prefix_cache_queries_total counter
vllm:prefix_cache_queries_total{engine="0",model_name="m"} 1770.0
vllm:prefix_cache_queries_created{engine="0",model_name="m"} 1.7e+09
# TYPE vllm:prefix_cache_hits_total counter
vllm:prefix_cache_hits_total{engine="0",model_name="m"} 768.0
# TYPE vllm:num_preemptions_total counter
vllm:num_preemptions_total{engine="0",model_name="m"} 2.0
# TYPE vllm:generation_tokens_total counter
vllm:generation_tokens_total{engine="0",model_name="m"} 4096.0
# TYPE vllm:cache_config_info gauge
vllm:cache_config_info{block_size="128",engine="0",kv_cache_max_concurrency="1024.0",\
kv_cache_size_tokens="524288",num_gpu_blocks="4096",num_cpu_blocks="None"} 1.0
# TYPE process_cpu_seconds_total counter
process_cpu_seconds_total 31.0
"""


def test_one_engine_by_hand():
    load = parse_load(ONE_ENGINE)
    assert (load.kv_usage, load.running, load.waiting, load.preemptions) == (0.625, 12, 3, 2)
    assert (load.generation_tokens, load.prefix_queries, load.prefix_hits) == (4096, 1770, 768)
    assert (load.kv_tokens, load.block_size, load.kv_max_concurrency) == (524288, 128, 1024.0)


def engines(usages: list[float], waiting: list[int]) -> str:
    lines = ["# TYPE vllm:kv_cache_usage_perc gauge"]
    lines += [f'vllm:kv_cache_usage_perc{{engine="{i}"}} {u}' for i, u in enumerate(usages)]
    lines += ["# TYPE vllm:num_requests_waiting gauge"]
    lines += [f'vllm:num_requests_waiting{{engine="{i}"}} {w}' for i, w in enumerate(waiting)]
    return "\n".join(lines) + "\n"


@given(st.lists(st.tuples(st.floats(0, 1), st.integers(0, 1000)), min_size=1, max_size=8))
def test_usage_is_that_of_the_fullest_engine_and_waiting_is_the_sum(pairs):
    usages, waiting = [u for u, _ in pairs], [w for _, w in pairs]
    load = parse_load(engines(usages, waiting))
    assert load.kv_usage == max(usages)
    assert load.waiting == sum(waiting)


def test_several_engines_hold_their_tokens_together():
    config = (
        'vllm:cache_config_info{{block_size="16",engine="{}",kv_cache_size_tokens="1000"}} 1.0\n'
    )
    text = "# TYPE vllm:cache_config_info gauge\n" + config.format(0) + config.format(1)
    assert parse_load(text).kv_tokens == 2000


def test_a_server_that_names_only_blocks_has_their_tokens():
    text = 'vllm:cache_config_info{block_size="16",num_gpu_blocks="100",engine="0"} 1.0\n'
    load = parse_load("# TYPE vllm:cache_config_info gauge\n" + text)
    assert (load.kv_tokens, load.block_size, load.kv_max_concurrency) == (1600, 16, None)


def test_a_server_that_says_nothing_has_no_load_and_no_size():
    load = parse_load("")
    assert (load.kv_usage, load.running, load.waiting) == (0.0, 0, 0)
    assert (load.kv_tokens, load.block_size, load.kv_max_concurrency) == (None, None, None)


def test_adapters_in_use_are_those_of_the_series_set_last():
    load = parse_load(
        """
# TYPE vllm:lora_requests_info gauge
vllm:lora_requests_info{max_lora="4",running_lora_adapters="a",waiting_lora_adapters=""} 10.5
vllm:lora_requests_info{max_lora="4",running_lora_adapters="b,c",waiting_lora_adapters="d"} 11.5
vllm:lora_requests_info{max_lora="4",running_lora_adapters="",waiting_lora_adapters=""} 9.5
"""
    )
    assert load.adapters_in_use == {"b", "c", "d"}
    assert parse_load(ONE_ENGINE).adapters_in_use == frozenset()
