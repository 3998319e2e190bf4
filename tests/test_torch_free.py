"""Only training, sync and the folder engine load torch or vllm when they are imported."""

import json
import subprocess
import sys

# In a process of its own: the tests beside this one load torch.
IMPORT_ALL = """
import importlib, json, pkgutil, sys
import asyncgrpo

loading = ("asyncgrpo.training", "asyncgrpo.sync", "asyncgrpo.server.folder_engine")
names = [module.name for module in pkgutil.walk_packages(asyncgrpo.__path__, "asyncgrpo.")]
names = [name for name in names if not name.startswith(loading)]
for name in names:
    importlib.import_module(name)
print(json.dumps([names, sorted({"torch", "vllm"} & set(sys.modules))]))
"""


def test_no_other_module_loads_torch_or_vllm():
    done = subprocess.run(
        [sys.executable, "-c", IMPORT_ALL], capture_output=True, text=True, check=True
    )
    names, loaded = json.loads(done.stdout)
    assert {"asyncgrpo.cli", "asyncgrpo.rollout.worker", "asyncgrpo.server.packed"} <= set(names)
    assert not loaded
