"""The router as the bench sees it: states, loads, streamed completions with the server's own timings."""

from __future__ import annotations

import contextlib
import http.client
import json
import math
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

from paramiko import SSHException
from pyinfra.api.exceptions import PyinfraError

ASK_SECONDS = 60
LOAD_SECONDS = 900  # a 50 GB model from a slow disk
SILENT_SECONDS = 600  # eight prompts of 20,000 tokens, before the last one's first token
POLL_SECONDS = 0.05
ANSWER_BYTES = 64 << 20
LOADED = "loaded"
RESIDENT = (LOADED, "sleeping")
_COUNTERS = re.compile(r"^llamacpp:(?:prompt_tokens|tokens_predicted)_total (\S+)$", re.MULTILINE)


class RouterFault(PyinfraError):
    """The router did not do what was asked; the text says why, in one line, and never holds the key."""


@dataclass(frozen=True)
class ModelState:
    """``value`` as the router gives it: unloaded, loading, loaded, sleeping and the like."""

    value: str
    failed: bool = False
    exit_code: int | None = None


@dataclass(frozen=True)
class Completion:
    """One streamed completion. ``prompt_tokens`` were computed (not taken from a cache), ``tokens``
    generated.

    Speeds in tok/s as the server measured them; ``first_token`` and ``seconds`` on our side of the tunnel.
    """

    prompt_tokens: int
    tokens: int
    prompt_speed: float
    speed: float
    first_token: float
    seconds: float


@dataclass(frozen=True)
class Work:
    """What a model's process has done since its start: ``tokens`` of prompts and answers, by its counters.

    They are printed with six digits: ``coarse`` is how far a difference of two may be off.
    """

    tokens: float
    coarse: float


class Router:
    """``wire`` opens a connection, given a timeout in seconds."""

    def __init__(self, wire: Callable[[float], Any], key: str) -> None:
        self._wire = wire
        self._key = key
        self._open: set[Any] = set()

    def __repr__(self) -> str:
        return "Router(...)"  # never the key

    # -- models --------------------------------------------------------------------------------------

    def states(self) -> dict[str, ModelState]:
        """Every model that the router knows, and its state."""
        answer = self.ask("GET", "/models")
        try:
            return {str(model["id"]): _state(model["status"]) for model in answer["data"]}
        except (KeyError, TypeError, AttributeError):
            raise RouterFault("GET /models answered in a shape that is not llama.cpp's router's") from None

    def loaded(self) -> list[str]:
        """The models that are loaded or on their way."""
        return [name for name, state in self.states().items() if state.value in (*RESIDENT, "loading")]

    def load(self, model: str, seconds: float = LOAD_SECONDS) -> float:
        """Load ``model``; the seconds until the router said that it is loaded."""
        begun = time.perf_counter()
        self.ask("POST", "/models/load", {"model": model}, seconds)
        state = self._wait(model, lambda state: state.value != "loading", begun + seconds)
        if state.value != LOADED:
            code = "" if state.exit_code is None else f" (its process ended with {state.exit_code})"
            raise RouterFault(f"{model} does not load{code}: see the journal of the lane's unit")
        return time.perf_counter() - begun

    def settle(self, model: str, seconds: float = LOAD_SECONDS) -> ModelState:
        """The state of ``model`` once it is not on its way any more."""
        return self._wait(model, lambda state: state.value != "loading", time.perf_counter() + seconds)

    def unload(self, model: str, seconds: float = 120) -> None:
        """Unload ``model`` and wait until it is; nothing when it is not loaded.

        One that is on its way is waited for: llama.cpp would kill it, and that looks like a crash.
        """
        if model not in self.loaded() or self.settle(model).value not in RESIDENT:
            return
        begun = time.perf_counter()
        self.ask("POST", "/models/unload", {"model": model}, seconds)
        self._wait(model, lambda state: state.value == "unloaded", begun + seconds)

    def _wait(self, model: str, done: Callable[[ModelState], bool], until: float) -> ModelState:
        while True:
            state = self.states().get(model)
            if state is None:
                raise RouterFault(f"the router no longer knows {model}")
            if done(state):
                return state
            if time.perf_counter() > until:
                raise RouterFault(f"{model} is still {state.value}: the wait is over")
            time.sleep(POLL_SECONDS)

    def busy(self, model: str) -> int | None:
        """How many requests a loaded model answers now, None where it does not say. Never loads one."""
        try:
            slots = self.ask("GET", f"/slots?model={quote(model, safe='')}&autoload=false")
            return sum(bool(slot["is_processing"]) for slot in slots)
        except (RouterFault, KeyError, TypeError):
            return None

    def work(self) -> dict[str, Work | None]:
        """What every loaded model has done, None where it does not say. Loads and evicts nothing."""
        loaded = [name for name, state in self.states().items() if state.value == LOADED]
        return {name: self._worked(name) for name in loaded}

    def _worked(self, model: str) -> Work | None:
        try:
            text = self._read("GET", f"/metrics?model={quote(model, safe='')}&autoload=false").decode()
            found = [_finite(figure) for figure in _COUNTERS.findall(text)]
        except (RouterFault, ValueError):
            return None
        if len(found) != 2:
            return None
        return Work(sum(found), sum(10.0 ** (len(str(int(one))) - 6) for one in found if one >= 1e6))

    # -- requests ------------------------------------------------------------------------------------

    def tokenize(self, model: str, text: str) -> list[int]:
        """The tokens of ``text``."""
        answer = self.ask("POST", "/tokenize", {"model": model, "content": text})
        try:
            found = [int(token) for token in answer["tokens"]]
        except (KeyError, TypeError, ValueError):
            raise RouterFault("POST /tokenize answered in a shape that is not llama.cpp's") from None
        if not found:
            raise RouterFault("POST /tokenize: a text has no tokens")
        return found

    def complete(self, model: str, prompt: Sequence[int], tokens: int) -> Completion:
        """Exactly ``tokens`` tokens after ``prompt``, without a cached prompt and without an early end; less
        of either is a fault, not a figure."""
        body = {
            "model": model,
            "prompt": list(prompt),
            "n_predict": tokens,
            "cache_prompt": False,
            "ignore_eos": True,
            "temperature": 0,
            "stream": True,
        }
        begun = time.perf_counter()
        first = 0.0
        timings: Any = None
        for event in self.stream("/completion", body):
            first = first or time.perf_counter() - begun
            timings = event.get("timings", timings)
        seconds = time.perf_counter() - begun
        try:
            done = Completion(
                int(timings["prompt_n"]),
                int(timings["predicted_n"]),
                _finite(timings["prompt_per_second"]),
                _finite(timings["predicted_per_second"]),
                first,
                seconds,
            )
        except (KeyError, TypeError, ValueError, OverflowError):
            raise RouterFault("the completion has no timings: is this llama.cpp?") from None
        if done.tokens < tokens:
            raise RouterFault(f"POST /completion: it ended after {done.tokens} of {tokens} tokens")
        if done.prompt_tokens < len(prompt):
            raise RouterFault(
                f"POST /completion: {done.prompt_tokens} of {len(prompt)} prompt tokens were computed,"
                " the rest came from a cache"
            )
        if tokens > 1 and done.speed <= 0:  # llama.cpp's word for a time that it does not know
            raise RouterFault("POST /completion: the server does not say how fast it was")
        return done

    def chat(
        self, model: str, messages: Sequence[Mapping[str, Any]], tokens: int, **more: Any
    ) -> dict[str, Any]:
        """The assistant's message of one chat, with ``finish_reason`` added."""
        # Streamed: one that is not is worked at to its end, also when nobody waits for it any more.
        body = {
            "model": model,
            "messages": list(messages),
            "max_tokens": tokens,
            "temperature": 0,
            "stream": True,
            **more,
        }
        try:
            return _message_of(self.stream("/v1/chat/completions", body))
        except (KeyError, TypeError, ValueError, AttributeError):
            raise RouterFault("the chat completion has no choice: is this llama.cpp?") from None

    def ask(self, method: str, path: str, body: Any = None, timeout: float = ASK_SECONDS) -> Any:
        """The JSON answer to one request. Raises `RouterFault`."""
        content = self._read(method, path, body, timeout)
        try:
            return json.loads(content)
        except (ValueError, RecursionError):
            what = f"{method} {path.partition('?')[0]}"
            raise RouterFault(f"{what} answered with something that is not JSON") from None

    def _read(self, method: str, path: str, body: Any = None, timeout: float = ASK_SECONDS) -> bytes:
        with self._response(method, path, body, timeout) as response:
            return response.read(ANSWER_BYTES)

    def stream(self, path: str, body: Any, timeout: float = SILENT_SECONDS) -> Iterator[dict[str, Any]]:
        """The events of a streamed answer. Raises `RouterFault` when it ends before its end."""
        with self._response("POST", path, body, timeout) as response:
            while line := response.readline(ANSWER_BYTES):
                if line.startswith((b"data: {", b"error: {")):
                    event = json.loads(line.partition(b": ")[2])
                    if line.startswith(b"error") or "error" in event:
                        raise RouterFault(f"POST {path}: {_message(json.dumps(event).encode())}")
                    yield event
                    if event.get("stop") is True:
                        return
                elif line.strip() == b"data: [DONE]":
                    return
        raise RouterFault(f"POST {path}: the answer was cut off")

    def abort(self) -> None:
        """Cut every connection: requests that are under way end."""
        for connection in list(self._open):
            connection.abort()

    @contextlib.contextmanager
    def _response(
        self, method: str, path: str, body: Any, timeout: float
    ) -> Iterator[http.client.HTTPResponse]:
        what = f"{method} {path.partition('?')[0]}"
        connection = _Connection(self._wire, timeout)
        self._open.add(connection)
        headers = {"Authorization": f"Bearer {self._key}", "Content-Type": "application/json"}
        try:
            connection.request(method, path, None if body is None else json.dumps(body), headers)
            response = connection.getresponse()
            if response.status != 200:
                raise RouterFault(
                    f"{what} answered {response.status}: {_message(response.read(ANSWER_BYTES))}"
                )
            yield response
        except TimeoutError:
            raise RouterFault(f"{what}: no byte in {timeout:.0f} s") from None
        except http.client.HTTPException as error:
            raise RouterFault(f"{what}: the answer was cut off ({type(error).__name__})") from None
        except (OSError, EOFError, SSHException) as error:
            raise RouterFault(f"{what}: {error}") from None
        except RouterFault:
            raise
        except PyinfraError as error:  # the wire's own
            raise RouterFault(str(error)) from None
        except ValueError:
            raise RouterFault(f"{what} answered with something that is not JSON") from None
        finally:
            self._open.discard(connection)
            connection.close()


class _Connection(http.client.HTTPConnection):
    def __init__(self, wire: Callable[[float], Any], timeout: float) -> None:
        super().__init__("127.0.0.1", timeout=timeout)
        self._wire = wire

    def connect(self) -> None:
        self.sock = self._wire(self.timeout or ASK_SECONDS)

    def abort(self) -> None:
        sock: Any = self.sock
        with contextlib.suppress(OSError, EOFError):
            if hasattr(sock, "abort"):
                sock.abort()
            elif sock is not None:
                sock.close()


def _state(status: Mapping[str, Any]) -> ModelState:
    code = status.get("exit_code")
    return ModelState(
        str(status["value"]), bool(status.get("failed", False)), code if isinstance(code, int) else None
    )


def _message_of(events: Iterator[Mapping[str, Any]]) -> dict[str, Any]:
    """The message that the pieces of a streamed chat make."""
    content: list[str] = []
    calls: dict[int, dict[str, Any]] = {}
    reason = None
    for event in events:
        for choice in event["choices"][:1]:
            delta = choice["delta"]
            content.append(delta.get("content") or "")
            for piece in delta.get("tool_calls") or ():
                call = calls.setdefault(int(piece["index"]), {"type": "function", "function": {}})
                if piece.get("id"):
                    call["id"] = piece["id"]
                for key, text in (piece.get("function") or {}).items():
                    call["function"][key] = call["function"].get(key, "") + (text or "")
            reason = choice.get("finish_reason") or reason
    if reason is None:
        raise ValueError("no end")
    made = {"tool_calls": [calls[index] for index in sorted(calls)]} if calls else {}
    return {"role": "assistant", "content": "".join(content), **made, "finish_reason": reason}


def _finite(value: Any) -> float:
    number = float(value)
    if not math.isfinite(number):
        raise ValueError(number)
    return number


def _message(content: bytes) -> str:
    try:
        text = str(json.loads(content)["error"]["message"])
    except (ValueError, KeyError, TypeError, RecursionError):
        text = content[:300].decode(errors="replace")
    return " ".join("".join(c if c.isprintable() else " " for c in text[:300]).split()) or "no reason"
