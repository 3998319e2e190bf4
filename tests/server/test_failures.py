"""Answers of real vLLM 0.32 servers, and the errors they become."""

import json

import pytest

from asyncgrpo.server.failures import (
    EngineDeadError,
    RouteMissingError,
    StatusError,
    TooManyLogprobsError,
    UnknownModelError,
    failure,
    unreachable,
)

URL = "http://127.0.0.1:8000"


def vllm_error(message: str, status: int) -> bytes:
    info = {"message": message, "type": "BadRequestError", "param": None, "code": status}
    return json.dumps({"error": info}).encode()


@pytest.mark.parametrize(
    ("path", "status", "body", "kind", "remedy"),
    [
        pytest.param(
            "/v1/completions",
            404,
            vllm_error("The model `x` does not exist. Valid aliases: m.", 404),
            UnknownModelError,
            "does not exist",
            id="unknown model",
        ),
        pytest.param(
            "/pause?mode=keep",
            404,
            b'{"detail":"Not Found"}',
            RouteMissingError,
            "VLLM_SERVER_DEV_MODE=1",
            id="dev mode off",
        ),
        pytest.param(
            "/v1/load_lora_adapter",
            404,
            b'{"detail":"Not Found"}',
            RouteMissingError,
            "VLLM_ALLOW_RUNTIME_LORA_UPDATING=1",
            id="adapter routes off",
        ),
        pytest.param(
            "/v1/load_lora_adapter",
            404,
            vllm_error("Loading lora a failed: No adapter found for /x", 404),
            StatusError,
            "No adapter found",
            id="no adapter there",
        ),
        pytest.param(
            "/v1/load_lora_adapter",
            500,
            vllm_error("LoRA rank 32 is greater than max_lora_rank 16.", 500),
            StatusError,
            "--max-lora-rank",
            id="rank too high",
        ),
        pytest.param(
            "/inference/v1/generate",
            403,
            vllm_error("Scale-out endpoints are disabled. Restart with --enable-scale-out", 403),
            StatusError,
            "--enable-scale-out",
            id="scale-out off",
        ),
        pytest.param(
            "/v1/completions",
            400,
            vllm_error(
                "Requested sample logprobs of 40, which is greater than max allowed: 20", 400
            ),
            TooManyLogprobsError,
            "--max-logprobs",
            id="too many logprobs",
        ),
        pytest.param(
            "/start_weight_update",
            500,
            vllm_error("Worker failed with error 'Weight transfer not configured.", 500),
            StatusError,
            "--weight-transfer-config",
            id="no weight transfer",
        ),
        pytest.param(
            "/v1/models",
            401,
            b'{"error": "Unauthorized"}',
            StatusError,
            "server.api_key_env",
            id="no key",
        ),
        pytest.param(
            "/asyncgrpo/generate",
            500,
            vllm_error("EngineCore encountered an issue. See stack trace (above) for the", 500),
            EngineDeadError,
            "Restart the server",
            id="dead engine",
        ),
    ],
)
def test_an_answer_becomes_an_error_that_names_path_status_and_remedy(
    path, status, body, kind, remedy
):
    error = failure(URL, path, status, body)
    assert type(error) is kind
    assert remedy in str(error)
    assert path in str(error)
    assert str(status) in str(error)


def test_an_answer_that_is_not_vllms_is_shown_in_part():
    error = failure(URL, "/v1/models", 502, b"<html>" + b"x" * 10_000)
    assert "answered 502: <html>xxx" in str(error)
    assert len(str(error)) < 500


@pytest.mark.parametrize(
    ("error", "remedy"),
    [
        (OSError(24, "Too many open files"), "raise `ulimit -n`"),
        (ConnectionRefusedError(111, "Connection refused"), "is the server running?"),
    ],
)
def test_no_answer_has_a_remedy_too(error, remedy):
    assert remedy in str(unreachable(URL, "/v1/completions", error, 600))
