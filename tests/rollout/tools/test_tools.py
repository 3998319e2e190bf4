"""Tools: their descriptions, the outcomes of calls, the cost of a slow one."""

import asyncio
import functools
import json
import threading

import pytest

from asyncgrpo.errors import HookError
from asyncgrpo.rollout.chat.reply_parsing import BadCall, ToolCall
from asyncgrpo.rollout.tools.tools import CallOutcome, Toolbox, ToolUse, load_tools, schema_of
from tests.rollout import tool_functions as tools

MODULE = "tests.rollout.tool_functions"


def toolbox(*functions, timeout_s=5.0):
    return Toolbox(functions, timeout_s=timeout_s)


async def answered(box, *calls):
    use = ToolUse()
    messages = await box.answer(calls, use)
    return [message["content"] for message in messages], use


# What the model is told


def test_a_schema_by_hand():
    assert schema_of(tools.add, key="k") == {
        "type": "function",
        "function": {
            "name": "add",
            "description": "Add two integers.",
            "parameters": {
                "type": "object",
                "properties": {
                    "a": {"type": "integer", "description": "The first."},
                    "b": {"type": "integer", "description": "The second."},
                },
                "required": ["a", "b"],
            },
            "return": {"type": "integer"},
        },
    }


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("without_hint", r"tool `without_hint`: parameter `a` has no type hint; write `a: int`"),
        ("without_docstring", r"tool `without_docstring` has no docstring"),
        ("without_description", r"tool `without_description` cannot .*'b'"),
        ("with_keywords", r"tool `with_keywords`: parameter `\*\*numbers: int` cannot be passed"),
        ("with_an_unknown_type", r"tool `with_an_unknown_type` cannot be described"),
        ("yields", r"tool `yields` yields; return the result"),
        ("yields_async", r"tool `yields_async` yields; return the result"),
        ("NOT_A_TOOL", r"is 3; expected a function"),
        ("missing", r"has no `missing`"),
    ],
)
def test_a_tool_that_a_model_cannot_be_told_of_is_refused_by_name(name, message):
    with pytest.raises(HookError, match=message) as error:
        load_tools([f"{MODULE}:add", f"{MODULE}:{name}"])
    assert str(error.value).startswith("rollout.tools[1]: ")


def test_two_tools_of_one_name_are_refused():
    with pytest.raises(HookError, match=r"rollout.tools\[1\]: another tool is named `add`"):
        load_tools([f"{MODULE}:add", f"{MODULE}:add"])


def test_what_has_no_name_is_no_tool():
    with pytest.raises(HookError, match="this has none that it could write"):
        schema_of(functools.partial(tools.add, b=2), key="rollout.tools[0]")


# What becomes of a call


async def test_results_come_in_the_order_of_the_calls():
    box = toolbox(tools.add, tools.multiply, tools.slow, tools.describe)
    contents, use = await answered(
        box,
        ToolCall("slow", {}),
        ToolCall("multiply", {"a": 3, "b": 4}),
        ToolCall("add", {"a": 3, "b": 4}),
        ToolCall("describe", {"city": "Köln"}),
    )
    assert contents[:3] == ["done", "12", "7"]
    assert contents[3] == '{"city": "Köln", "people": 7, "known": true}'
    assert [call.name for call in use.calls] == ["slow", "multiply", "add", "describe"]
    assert not any(call.failed for call in use.calls)
    assert use.calls[0].duration_s >= 0.3
    assert use.calls_per_reply == [4]


async def test_a_result_is_a_message_that_names_its_tool():
    (message,) = await toolbox(tools.add).answer([ToolCall("add", {"a": 1, "b": 1})], ToolUse())
    assert message == {"role": "tool", "name": "add", "content": "2"}


@pytest.mark.parametrize(
    ("call", "outcome", "error"),
    [
        (ToolCall("divide", {"a": 1, "b": 0}), CallOutcome.FAILED, "ZeroDivisionError: division"),
        (ToolCall("divide", {"a": 1}), CallOutcome.FAILED, "missing a required argument: 'b'"),
        (ToolCall("divide", {"a": 1, "b": 2, "c": 3}), CallOutcome.FAILED, "unexpected keyword"),
        (ToolCall("divide", {"a": "x", "b": 2}), CallOutcome.FAILED, "TypeError"),
        (ToolCall("ends_the_process", {}), CallOutcome.FAILED, "SystemExit"),
        (ToolCall("ends_the_loop", {}), CallOutcome.FAILED, "SystemExit: 3"),
        (ToolCall("of_itself", {}), CallOutcome.FAILED, "Circular reference"),
        (ToolCall("says_nothing", {}), CallOutcome.FAILED, "SilentError: (it cannot be printed"),
        (ToolCall("subtract", {}), CallOutcome.UNKNOWN, "no tool `subtract`; there are: divide,"),
        (BadCall("{x", "not valid JSON"), CallOutcome.MALFORMED, "`{x` cannot be read: not valid"),
    ],
)
async def test_a_failure_is_a_message_that_the_model_sees(call, outcome, error):
    box = toolbox(
        tools.divide,
        tools.ends_the_process,
        tools.ends_the_loop,
        tools.of_itself,
        tools.says_nothing,
    )
    (content,), use = await answered(box, call)
    assert error in json.loads(content)["error"]
    assert use.calls[0].outcome is outcome
    assert use.num_failures == 1


async def test_parameters_may_have_any_name_and_results_be_no_text():
    contents, use = await answered(
        toolbox(tools.calls, tools.half_a_pair),
        ToolCall("calls", {"call": "a", "function": "b"}),
        ToolCall("half_a_pair", {}),
    )
    assert contents == ["ab", "a?b"]
    assert use.num_failures == 0


@pytest.mark.parametrize("name", ["hangs", "hangs_async"])
async def test_a_tool_that_never_returns_ends_in_an_error_that_names_it(name):
    use = ToolUse()
    box = toolbox(tools.add, getattr(tools, name), timeout_s=2.0)
    message = f"tool `{name}` took longer than rollout.tool_timeout_s = 2"
    with pytest.raises(HookError, match=message):
        await box.answer([ToolCall("add", {"a": 1, "b": 2}), ToolCall(name, {})], use)
    assert [call.outcome for call in use.calls] == [CallOutcome.DONE, CallOutcome.TIMED_OUT]
    assert use.calls[1].duration_s >= 2.0


async def test_a_slow_tool_holds_nobody_else_up():
    everybody = threading.Barrier(21, timeout=60)  # nobody passes before all others came

    def slow() -> str:
        """Wait for the others."""
        everybody.wait()
        return "done"

    box = toolbox(slow, tools.add, timeout_s=60.0)
    calls = [asyncio.ensure_future(answered(box, ToolCall("slow", {}))) for _ in range(20)]
    await asyncio.sleep(0)
    contents, _ = await answered(box, ToolCall("add", {"a": 1, "b": 2}))
    assert contents == ["3"]
    assert not any(call.done() for call in calls)
    await asyncio.to_thread(everybody.wait)  # else they are not side by side
    assert [contents for contents, _ in await asyncio.gather(*calls)] == [["done"]] * 20


async def test_no_tool_runs_on_the_event_loop():
    tools.THREADS.clear()
    here = __import__("threading").current_thread().name
    await answered(
        toolbox(tools.add, tools.multiply),
        ToolCall("add", {"a": 1, "b": 2}),
        ToolCall("multiply", {"a": 1, "b": 2}),
    )
    assert tools.THREADS
    assert here not in tools.THREADS


async def test_an_async_tool_that_blocks_does_not_block_the_worker():
    tools.may_go_on.clear()
    box = toolbox(tools.blocks_its_loop, timeout_s=0.2)
    with pytest.raises(HookError, match="blocks_its_loop"):
        await box.answer([ToolCall("blocks_its_loop", {})], ToolUse())
    contents, _ = await answered(toolbox(tools.add), ToolCall("add", {"a": 1, "b": 2}))
    assert contents == ["3"]
    tools.may_go_on.set()
