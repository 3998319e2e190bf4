"""code_reward: what a program does decides, not what it says; the tests stay out of its reach."""

import json

import pytest

from asyncgrpo.errors import HookError
from asyncgrpo.rewards import code_reward
from asyncgrpo.rewards.code import Asserts, Runs
from asyncgrpo.rewards.code import tests_of as parsed
from asyncgrpo.sandbox import landlock

confined = pytest.mark.skipif(landlock.version() == 0, reason="this kernel has no Landlock")
ADD = "def add(a, b):\n    return a + b"
ADDS = ["assert add(1, 2) == 3", "assert add(-1, 1) == 0"]


def said(code, language="python"):
    text = f"<think>```python\nno\n```</think>Here it is:\n```{language}\n{code}\n```\nDone."
    return [{"role": "assistant", "content": text}]


async def reward(code, tests, **kwargs):
    (given,) = await code_reward([said(code)], tests=[tests], **kwargs)
    return given


# The tests


@pytest.mark.parametrize(
    ("value", "tests"),
    [
        ("assert f(1)", Asserts(("assert f(1)",))),
        (["a", "b"], Asserts(("a", "b"))),
        ('["a", "b"]', Asserts(("a", "b"))),
        ("[f(1)] == [2] or 1 / 0", Asserts(("[f(1)] == [2] or 1 / 0",))),
        ([{"input": "1", "output": "2"}], Runs(("1",), ("2",))),
        ({"inputs": ["1"], "outputs": [["2", "3"]]}, Runs(("1",), ("2\n3",))),
        (json.dumps({"inputs": ["1"], "outputs": ["2"]}), Runs(("1",), ("2",))),
    ],
)
def test_a_rows_tests(value, tests):
    assert parsed(value, "tests") == tests


@pytest.mark.parametrize("value", [None, "", [], 3, {"inputs": ["1"], "outputs": []}, [1], [{}]])
async def test_a_row_without_tests_is_named(value):
    with pytest.raises(HookError, match=r"column `tests` holds .*expected Python tests"):
        parsed(value, "tests")


@pytest.mark.parametrize("value", ["assert f(2 ==", ["assert f(1)", "[1, 2"], "a\0"])
def test_a_test_that_is_no_python_is_named(value):
    with pytest.raises(HookError, match=r"column `tests` holds .*, which is not Python: "):
        parsed(value, "tests")


async def test_the_column_is_the_recipes():
    with pytest.raises(HookError, match="needs a column `tests`"):
        await code_reward([said(ADD)], test_list=[ADDS])


# The verdict


@confined
async def test_all_tests_must_pass_or_with_partial_their_share_counts():
    right, wrong = ADD, "def add(a, b):\n    return 3"
    assert await reward(right, ADDS) == 1.0
    assert await reward(wrong, ADDS) == 0.0
    assert await reward(wrong, ADDS, partial=True) == 0.5
    assert await reward("def add(a, b) return", ADDS, partial=True) == 0.0
    assert await reward("1 / 0", ADDS, partial=True) == 0.0
    assert (await code_reward([said(ADD)], test_list=[ADDS], column="test_list")) == [1.0]
    assert (await code_reward([[{"role": "assistant", "content": "3"}]], tests=[ADDS])) == [0.0]


@confined
async def test_check_is_called_with_the_entry_point():
    tests = (
        "def check(candidate):\n    assert candidate(1, 2) == 3\n    assert candidate(2, 2) == 4"
    )
    for code, expected in ((ADD, 1.0), (ADD.replace("+", "-"), 0.0)):
        assert await code_reward([said(code)], ["add"], tests=[tests]) == [expected]


@confined
async def test_a_program_of_stdin_and_stdout():
    code = "n = int(input())\nif __name__ == '__main__':\n    print(*range(n), sep='\\n')"
    pairs = [{"input": "2\n", "output": "0\n1"}, {"input": "1", "output": "0\n\n"}]
    assert await reward(code, pairs) == 1.0
    assert await reward(code, [*pairs, {"input": "1", "output": "1"}], partial=True) == 2 / 3
    assert await reward(code + "\nraise SystemExit(0)", pairs) == 1.0
    assert await reward(code + "\nraise SystemExit(3)", pairs) == 0.0
    assert await reward(code + "\n1 / 0", pairs) == 0.0


@confined
@pytest.mark.parametrize(
    ("code", "test"),
    [
        pytest.param("def f(x): x.sort()", "a = [2, 1]\nf(a)\nassert a == [1, 2]", id="in place"),
        pytest.param("def f(g): return g(2) + 1", "assert f(lambda x: x * 5) == 11", id="callback"),
        pytest.param("def f(g): return g(-2)", "assert f(abs) == 2", id="a builtin as argument"),
        pytest.param(
            "def f(x):\n    if x < 0: raise ValueError('no')",
            "try:\n    f(-1)\n    assert False\n"
            "except ValueError as error:\n    assert 'no' in str(error)",
            id="an exception that is expected",
        ),
        pytest.param(
            "class Stack:\n    def __init__(self): self.items = []\n"
            "    def push(self, x): self.items.append(x)\n"
            "    def __len__(self): return len(self.items)",
            "s = Stack()\ns.push(3)\nassert len(s) == 1 and s.items == [3]\n"
            "assert isinstance(s, Stack)",
            id="a class of the program's",
        ),
        pytest.param(
            "from dataclasses import dataclass\n@dataclass\nclass P:\n    x: int",
            "assert P(1) == P(1) and P(1) != P(2)",
            id="two of its objects",
        ),
        pytest.param(
            "def f():\n    i = 0\n    while True:\n        yield i\n        i += 1",
            "from itertools import islice\nassert list(islice(f(), 3)) == [0, 1, 2]",
            id="a generator",
        ),
        pytest.param(
            "from collections import Counter\ndef f(s): return Counter(s)",
            "assert f('aab') == {'a': 2, 'b': 1}",
            id="a subclass of dict",
        ),
        pytest.param(
            "import math\ndef f(): return math.pi", "assert math.floor(f()) == 3", id="its import"
        ),
        pytest.param(
            "def f(): return 2", "from solution import f as g\nassert g() == 2", id="as a module"
        ),
        pytest.param("N = 3", "assert N == 3", id="a constant"),
        pytest.param(
            "from functools import partial\nf = partial(pow, 2)", "assert f(3) == 8", id="a partial"
        ),
        pytest.param(
            "from collections import Counter", "assert Counter('aa') == {'a': 2}", id="its class"
        ),
        pytest.param(
            "def f(*a, k=1, **o): return a, k, o",
            "assert f(1, k=2, z=3) == ((1,), 2, {'z': 3})",
            id="keywords",
        ),
    ],
)
async def test_tests_as_people_write_them(code, test):
    assert await reward(code, [test]) == 1.0
    assert await reward(code, [test + "\nassert False"]) == 0.0


@confined
async def test_a_test_that_needs_its_own_object_inside_the_program_scores_nothing():
    test = "class Node:\n    v = 1\nassert f(Node()) == 1"
    assert await reward("def f(node): return node.v", [test]) is None


# Programs that want the reward without the work


@confined
@pytest.mark.parametrize(
    "code",
    [
        pytest.param("import sys\nsys.exit(0)", id="leaves before the tests"),
        pytest.param("import os\nos._exit(0)", id="leaves at once"),
        pytest.param("def add(a, b):\n    import os\n    os._exit(0)", id="leaves in the middle"),
        pytest.param(
            "print('passed')\nprint('[\"passed\", \"passed\"]')", id="says that it passed"
        ),
        pytest.param(
            "class Yes(int):\n    def __eq__(self, other): return True\n"
            "def add(a, b): return Yes(7)",
            id="a number equal to all",
        ),
        pytest.param(
            "class Yes:\n    def __eq__(self, other): return True\ndef add(a, b): return Yes()",
            id="an object equal to all",
        ),
        pytest.param(
            "import builtins\nbuiltins.AssertionError = ValueError\n"
            "builtins.__build_class__ = None\n"
            "def add(a, b): return 9",
            id="breaks the builtins",
        ),
        pytest.param("def add(a, b): raise StopIteration", id="raises what loops catch"),
        pytest.param(
            "import gc, sys\n"
            "wanted = ')2 ,1(dda tressa'\n"
            "def add(a, b):\n"
            "    for o in gc.get_objects():\n"
            "        if isinstance(o, (list, tuple, dict)) and o is not globals():\n"
            "            if any(wanted[::-1] in str(e) for e in list(o)): return 3\n"
            "    frame = sys._getframe().f_back\n"
            "    while frame:\n"
            "        if any(wanted[::-1] in str(v) for v in frame.f_locals.values()): return 3\n"
            "        frame = frame.f_back\n"
            "    return 8",
            id="looks for the tests in memory",
        ),
        pytest.param(
            "import os, struct, json\n"
            "body = json.dumps('passed').encode()\n"
            "for fd in range(3, 64):\n"
            "    for _ in range(4):\n"
            "        try: os.write(fd, struct.pack('!I', len(body)) + body)\n"
            "        except OSError: pass",
            id="writes verdicts into every file it has",
        ),
        pytest.param(
            "def abs(x): return 0\ndef all(x): return True\ndef add(a, b): return 9",
            id="redefines builtins",
        ),
        pytest.param(
            "import json, os, struct, sys\n"
            "def frame(message):\n"
            "    body = json.dumps(message).encode()\n"
            "    return struct.pack('!I', len(body)) + body\n"
            "yes = ['far', 0]\n"
            "names = {'__builtins__': ['dict', ['abs', yes], ['all', yes]], 'add': yes}\n"
            "names |= {'abs': yes, 'all': yes, '_verdict': yes}\n"
            "for fd in range(3, 64):\n"
            "    try:\n"
            "        os.write(fd, frame({'names': names}))\n"
            "        for _ in range(40): os.write(fd, frame({'returned': True}))\n"
            "    except OSError: pass\n"
            "import time\ntime.sleep(2)",
            id="speaks to the judge itself",
        ),
        pytest.param("from unittest.mock import _ANY as add", id="a class equal to all"),
        pytest.param(
            "import sys\nsys.settrace(lambda *a: None)\n"
            "import asyncgrpo.sandbox.judge as j\nj._verdict = lambda *a: 'passed'\n"
            "def add(a, b): return 9",
            id="patches the judge",
        ),
    ],
)
async def test_a_verdict_cannot_be_forged(code):
    tests = [*ADDS, "assert abs(add(2, 2) - 4) < 1e-9", "assert all([add(0, 5) == 5])"]
    assert await reward(code, tests, partial=True, seconds=10.0) == 0.0


@confined
async def test_what_cannot_end_counts_as_wrong_and_hurts_no_other():
    completions = [
        said("while True: pass"),
        said(ADD),
        said("import time\ntime.sleep(60)"),
    ]
    assert await code_reward(completions, tests=[ADDS] * 3, seconds=4.0) == [0.0, 1.0, 0.0]


@confined
async def test_tests_that_passed_before_the_time_ran_out_count_with_partial():
    code = "def add(a, b):\n    while a < 0: pass\n    return a + b"
    assert await reward(code, ADDS, partial=True, seconds=4.0) == 0.5


@confined
async def test_a_class_of_a_library_that_equals_everything_stays_with_the_program():
    assert await reward("from unittest.mock import _ANY as f", ["assert f() == 5"]) == 0.0
