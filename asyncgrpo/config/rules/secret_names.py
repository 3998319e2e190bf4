"""The names of secrets: their values must not reach `config.json`, logs or the screen.

HF_TOKEN  --api-key  db_password          but not TOKENIZERS_PARALLELISM, --max-num-batched-tokens
"""

import re

SECRET = re.compile(r"(?i)(^|[_-])(api_?key|key|token|secret|password|passwd|credentials)($|[_-])")
