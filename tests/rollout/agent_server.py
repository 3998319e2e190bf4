"""An external agent: a service that solves tasks with the policy as its model.

    POST /solve {"task", "model", "server"}  -->  two requests to the server of its own
                                             <--  what it asked, what it was told, its own score

It knows nothing of asyncgrpo: only the OpenAI completions protocol.
"""

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import httpx

TOP = 3
PATIENCE_S = 60.0  # of every request, on a busy machine


def ask(server: str, model: str, prompt_ids: list[int], seed: int) -> dict:
    answer = httpx.post(
        f"{server}/v1/completions",
        json={
            "model": model,
            "prompt": prompt_ids,
            "max_tokens": 6,
            "seed": seed,
            "logprobs": TOP,
            "return_token_ids": True,
        },
        timeout=PATIENCE_S,
    ).json()["choices"][0]
    logprobs = answer["logprobs"]
    return {
        "prompt_ids": prompt_ids,
        "output_ids": answer["token_ids"],
        "logprobs": logprobs["token_logprobs"],
        "top": [
            {name.removeprefix("token_id:"): value for name, value in top.items()}
            for top in logprobs["top_logprobs"]
        ],
    }


class _Handler(BaseHTTPRequestHandler):
    def do_POST(self):
        request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        first = ask(request["server"], request["model"], request["task"], request["seed"])
        follow_up = [*first["prompt_ids"], *first["output_ids"], 60, 5, 61]
        second = ask(request["server"], request["model"], follow_up, request["seed"] + 1)
        body = json.dumps({"turns": [first, second], "score": second["output_ids"][0]}).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_, **__):
        pass


class _Server(ThreadingHTTPServer):
    request_queue_size = 128  # rollouts come at once; of 5, the others' SYNs are lost for seconds


class AgentServer:
    """The service in a thread, on a free port of the loopback."""

    def __init__(self):
        self._server = _Server(("127.0.0.1", 0), _Handler)
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, *_):
        self._server.shutdown()
        self._server.server_close()
