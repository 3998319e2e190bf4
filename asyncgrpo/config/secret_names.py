"""Which names are those of secrets: their values must not reach `config.json`."""

import re

SECRET = re.compile(r"(?i)(^|_)(api_?key|key|token|secret|password|passwd)($|_)")
