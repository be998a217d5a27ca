"""GET over HTTP, with one rule of its own: a credential stays with the origin that it is for."""

from __future__ import annotations

import http.client
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass
from email.message import Message
from typing import IO

MOST = 64 * 1024**2
"""Bytes of the largest answer that is taken."""


class WebError(Exception):
    """No answer, in one line. Holds neither a query (which may be a signature) nor a credential."""


class WebStatusError(WebError):
    """An answer that is a refusal; ``headers`` as they came."""

    def __init__(self, url: str, status: int, headers: Message) -> None:
        super().__init__(f"{host(url)} answered {status}")
        self.status, self.headers = status, headers


@dataclass(frozen=True)
class Answer:
    """A whole answer."""

    status: int
    headers: Message
    body: bytes


def origin(url: str) -> tuple[str, str]:
    """Scheme and host with port: what a credential is bound to."""
    parts = urllib.parse.urlsplit(url)
    return parts.scheme, parts.netloc.lower()


def host(url: str) -> str:
    """The host of a URL, for messages."""
    return origin(url)[1] or "no host"


class _Redirects(urllib.request.HTTPRedirectHandler):
    """Follows redirects, without the credential when they leave its origin, and never from https to http."""

    def redirect_request(
        self,
        req: urllib.request.Request,
        fp: IO[bytes],
        code: int,
        msg: str,
        headers: http.client.HTTPMessage,
        newurl: str,
    ) -> urllib.request.Request | None:
        if origin(newurl)[0] != "https" and not origin(newurl)[0] == origin(req.full_url)[0] == "http":
            raise WebError(
                f"{host(req.full_url)} redirects to {origin(newurl)[0]}, which is less safe: refused"
            )
        follow = super().redirect_request(req, fp, code, msg, headers, newurl)
        if follow is not None and origin(newurl) != origin(req.full_url):
            follow.remove_header("Authorization")
        return follow


class Web:
    """A client. ``authorization`` is sent to ``home``'s origin alone; ``timeout_s`` bounds each wait."""

    def __init__(self, timeout_s: float = 30.0, home: str = "", authorization: str | None = None) -> None:
        self.timeout_s, self.home, self._authorization = timeout_s, home, authorization
        self._opener = urllib.request.build_opener(_Redirects())

    def get(self, url: str, headers: Mapping[str, str] | None = None) -> Answer:
        """The answer to a GET. Raises `WebStatusError` at 400 and above, else `WebError`."""
        if origin(url)[0] not in ("http", "https"):
            raise WebError(f"{origin(url)[0] or 'no scheme'} is not http or https")
        request = urllib.request.Request(  # noqa: S310 - the scheme was checked
            url, headers={"User-Agent": "gb10", **(headers or {})}
        )
        if self._authorization and origin(url) == origin(self.home):
            request.add_header("Authorization", self._authorization)
        try:
            with self._opener.open(request, timeout=self.timeout_s) as response:
                length = response.headers.get("Content-Length") or ""
                if length.isdigit() and int(length) > MOST:
                    raise WebError(f"{host(url)} answers with {length} bytes, {MOST} is the most")
                body = response.read(MOST)
                if length.isdigit() and len(body) != int(length):
                    raise WebError(f"{host(url)} closed the connection at {len(body)} of {length} bytes")
                return Answer(response.status, response.headers, body)
        except urllib.error.HTTPError as error:
            with error:
                raise WebStatusError(url, error.code, error.headers) from None
        except (OSError, http.client.HTTPException, ValueError) as error:
            raise WebError(f"{host(url)}: {getattr(error, 'reason', error)}") from None
