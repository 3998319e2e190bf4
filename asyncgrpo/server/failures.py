"""The failures of a server, each with its remedy; retries.py says which are tried again.

status, body  --failure-->      EngineDeadError | UnknownModelError | ... | StatusError
exception     --unreachable-->  UnreachableError | LateAnswerError
"""

from http import HTTPStatus

import httpx
import msgspec

from asyncgrpo.errors import ServerError

EXCERPT = 300  # characters of an answer that go into a message
# vLLM's words for an engine process that is gone; only a restart helps.
_ENGINE_DEAD_MARKS = ("EngineDeadError", "EngineCore encountered an issue", "EngineCore died")
_MORE_LOGPROBS = "start it with a larger --max-logprobs"
_REMEDIES = (
    ("lora rank", "start it with a larger --max-lora-rank"),
    ("max_lora_rank", "start it with a larger --max-lora-rank"),
    ("max_logprobs", _MORE_LOGPROBS),
    ("greater than max allowed", _MORE_LOGPROBS),
    ("maximum context length", "shorten the prompt, or start it with a larger --max-model-len"),
    ("maximum model length", "shorten the prompt, or start it with a larger --max-model-len"),
    ("lora is not enabled", "start it with --enable-lora"),
    ("weight transfer", 'start it with --weight-transfer-config \'{"backend": "folder"}\''),
)
_REMEDY_OF_ROUTE = {
    "/v1/load_lora_adapter": "start it with VLLM_ALLOW_RUNTIME_LORA_UPDATING=1 and --enable-lora",
    "/v1/unload_lora_adapter": "start it with VLLM_ALLOW_RUNTIME_LORA_UPDATING=1 and --enable-lora",
    "/asyncgrpo/generate": "start it with --middleware asyncgrpo.server.packed.PackedEndpoint",
}
BAD_CERTIFICATE = "CERTIFICATE_VERIFY_FAILED"  # OpenSSL's word
_REMEDY_OF_REASON = (
    (BAD_CERTIFICATE, "set SSL_CERT_FILE to its authority's certificate"),
    ("Too many open files", "raise `ulimit -n`"),
)
DEV_ROUTES = frozenset(
    {
        "/pause",
        "/resume",
        "/server_info",
        "/reset_prefix_cache",
        "/start_weight_update",
        "/update_weights",
        "/finish_weight_update",
        "/weight_info",
    }
)


class UnreachableError(ServerError):
    """No answer: refused, disconnected, timed out."""


class NoConnectionError(UnreachableError):
    """Nothing listens at the address, or its name is not known."""


class LateAnswerError(UnreachableError):
    """No answer in time; the server may still be at work."""


class EngineDeadError(ServerError):
    """The HTTP side answers, but its engine process is gone; only a restart helps."""


class StatusError(ServerError):
    """The server answered another status than 200."""

    def __init__(self, message: str, status: int) -> None:
        super().__init__(message)
        self.status = status


class UnknownModelError(StatusError):
    """The server serves no model or adapter of the name asked for."""


class TooManyLogprobsError(StatusError):
    """More logprobs were asked for than --max-logprobs."""


class RouteMissingError(StatusError):
    """No such endpoint: a flag or variable was not set when the server started."""


def failure(url: str, path: str, status: int, body: bytes) -> ServerError:
    """The error for an answer that is not 200."""
    message = error_message(body)
    text = f"{url}{path} answered {status}: {message or body[:EXCERPT].decode(errors='replace')}"
    if status >= HTTPStatus.INTERNAL_SERVER_ERROR and is_engine_dead(message):
        return EngineDeadError(
            f"the engine behind {url} is dead ({path} answered {status}); its log says why. "
            "Restart the server"
        )
    remedy = _remedy(path, status, message)
    text = f"{text}; {remedy}" if remedy else text
    if status == HTTPStatus.NOT_FOUND and "does not exist" in message:
        return UnknownModelError(text, status)
    if status == HTTPStatus.NOT_FOUND and not message:
        return RouteMissingError(text, status)
    if status == HTTPStatus.BAD_REQUEST and remedy == _MORE_LOGPROBS:
        return TooManyLogprobsError(text, status)
    return StatusError(text, status)


def unreachable(url: str, path: str, error: Exception, timeout_s: float) -> UnreachableError:
    """The error for a request that got no answer."""
    if isinstance(error, (httpx.ReadTimeout, TimeoutError)):
        return LateAnswerError(f"{url}{path} did not answer within {timeout_s:g} s")
    reason = str(error) or type(error).__name__
    remedy = next((r for mark, r in _REMEDY_OF_REASON if mark in reason), "is the server running?")
    kind = NoConnectionError if isinstance(error, httpx.ConnectError) else UnreachableError
    return kind(f"{url}{path} did not answer ({reason}); {remedy}")


def is_engine_dead(message: str) -> bool:
    """True for an error message of vLLM's that reports its engine process gone."""
    return any(mark in message for mark in _ENGINE_DEAD_MARKS)


class _ErrorInfo(msgspec.Struct, frozen=True):
    message: str = ""


class _ErrorBody(msgspec.Struct, frozen=True):
    error: _ErrorInfo | str | None = None


def error_message(body: bytes) -> str:
    """The message of vLLM's error body; empty for a body that is none of vLLM's."""
    try:
        error = msgspec.json.decode(body, type=_ErrorBody).error
    except msgspec.MsgspecError:
        return ""
    message = error.message if isinstance(error, _ErrorInfo) else error or ""
    return message[:EXCERPT]


def _remedy(path: str, status: int, message: str) -> str:
    if status == HTTPStatus.UNAUTHORIZED:
        return "set server.api_key_env to the variable that holds its key"
    if not message and status == HTTPStatus.NOT_FOUND:
        route = path.partition("?")[0]
        if route in DEV_ROUTES:
            return "start it with VLLM_SERVER_DEV_MODE=1"
        return _REMEDY_OF_ROUTE.get(route, "")
    lowered = message.lower()
    return next((remedy for mark, remedy in _REMEDIES if mark in lowered), "")
