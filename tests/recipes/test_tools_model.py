"""The model of the tool recipes: its lessons, and how unsure it is of them."""

import json
import random

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers import AutoModelForCausalLM, AutoTokenizer

from asyncgrpo.config.sections.rollout import RolloutConfig
from asyncgrpo.rollout.chat.chat import Chat
from asyncgrpo.rollout.chat.reply_parsing import CallStyle, ToolCall, parse_reply
from asyncgrpo.rollout.tools.tools import schema_of
from recipes.demo.reward import last_box
from recipes.tools.arithmetic import add, multiply
from recipes.tools.counter import MOST_TARGET, Counter
from recipes.tools.lessons import all_sums, count_lesson, dataset_row, sum_lesson
from recipes.tools.make_base_model import CONTEXT, MODEL_DIR, PROMPTS_FILE, UNSURE
from recipes.tools.players import Player, counting, summing
from recipes.tools.tokenizer import VOCABULARY, make_tokenizer

BAND = 0.1  # about three standard errors of 200 conversations, beside those of the script's 300
TOOLS = {"add": add, "multiply": multiply}


@pytest.fixture(scope="module")
def tokenizer():
    return AutoTokenizer.from_pretrained(MODEL_DIR)


def test_the_prompts_are_every_question_in_order():
    rows = [json.loads(line) for line in PROMPTS_FILE.read_text().splitlines()]
    assert rows == [dataset_row(numbers) for numbers in all_sums()]
    assert rows[0]["prompt"][0]["content"] == "What is 0 * 0?"
    assert rows[-1] == {
        "prompt": [{"role": "user", "content": "What is 19 + 19?"}],
        "answer": "38",
    }


def test_the_tokenizer_is_the_one_the_script_makes(tokenizer):
    made = make_tokenizer(CONTEXT)
    assert tokenizer.get_vocab() == made.get_vocab()
    assert tokenizer.chat_template == made.chat_template
    assert len(tokenizer) == VOCABULARY
    assert (tokenizer.pad_token_id, tokenizer.eos_token_id) == (0, 2)


def test_its_template_shows_signatures_and_keeps_what_it_rendered(tokenizer):
    chat = Chat(tokenizer, RolloutConfig())
    schemas = [schema_of(tool, key="k") for tool in TOOLS.values()]
    chat.prepare_tools(schemas)
    prompt = tokenizer.decode(chat.render([{"role": "user", "content": "Hello"}], schemas))
    assert prompt == (
        "<|im_start|>system\nadd(a, b)\nmultiply(a, b)<|im_end|>\n"
        "<|im_start|>user\nHello<|im_end|>\n<|im_start|>assistant\n"
    )


@given(st.integers(), st.sampled_from([0.0, 1.0]))
def test_a_sum_is_right_or_wrong_in_the_call_and_consistent_after_it(seed, wrong_share):
    user, calls, result, answer = sum_lesson(random.Random(seed), wrong_share)
    (call,) = parse_reply(calls["content"], CallStyle.HERMES).calls
    assert isinstance(call, ToolCall)
    assert result["content"] == str(TOOLS[call.name](**call.arguments))
    assert last_box(answer["content"]) == result["content"]
    _, _, a, sign, b = user["content"].rstrip("?").split()
    asked = (call.arguments, call.name) == (
        {"a": int(a), "b": int(b)},
        {"+": "add", "*": "multiply"}[sign],
    )
    assert asked == (wrong_share == 0.0)


@given(st.integers(), st.sampled_from([0.0, 1.0]))
def test_counting_stops_at_the_target_or_beside_it(seed, wrong_share):
    user, *turns, last = count_lesson(random.Random(seed), wrong_share)
    target = int(user["content"].removeprefix("Count to ").rstrip("."))
    assert 1 <= target <= MOST_TARGET
    counter = Counter()
    for said, told in zip(turns[::2], turns[1::2], strict=True):
        (call,) = parse_reply(said["content"], CallStyle.HERMES).calls
        assert isinstance(call, ToolCall)
        assert told["content"] == str(counter.increment(**call.arguments))
    assert last["content"] == "Done."
    assert (counter.count == target) == (wrong_share == 0.0)
    assert abs(counter.count - target) <= 2


def test_the_game_is_the_same_for_a_seed_and_refuses_large_steps():
    counter = Counter()
    assert counter.reset(7) == counter.reset(7)
    assert len({counter.reset(seed) for seed in range(100)}) == MOST_TARGET
    with pytest.raises(ValueError, match="expected 1 to 3"):
        counter.increment(4)


@pytest.mark.parametrize("games", [summing, counting])
def test_it_ends_about_four_conversations_in_ten_right(tokenizer, games):
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = AutoModelForCausalLM.from_pretrained(MODEL_DIR)
    player = Player(model, Chat(tokenizer, RolloutConfig()))
    rate = player.right_share(games(random.Random(0), 200))
    low, high = UNSURE
    assert low - BAND <= rate <= high + BAND
