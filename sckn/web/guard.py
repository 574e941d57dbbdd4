"""What stands before the application: who may ask, how much may be sent, and headers that bind the browser."""

import asyncio
from collections.abc import Iterable
from contextlib import suppress
from time import monotonic
from urllib.parse import urlsplit

from fastapi import HTTPException
from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from sckn.web.limits import Limits, RefusalError

__all__ = ["BoundedUploads", "KnownVisitors", "StrictHeaders", "answer"]

HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' blob:; connect-src 'self'; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=()",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}
# What comes after an upload was refused is read and thrown away for a while: browsers look for an answer only then.
DRAIN_SECONDS, DRAIN_UPLOADS = 5.0, 4


class StrictHeaders:
    """Every answer has the headers; none but those that say so may be stored."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers[name] = value
                headers.setdefault("Cache-Control", "no-store")
            await send(message)

        await self._app(scope, receive, with_headers)


class KnownVisitors:
    """Pages of other sites cannot use the server through the browser of somebody who can reach it.

    `names` are the hosts that requests may be addressed to, any if there are none.
    """

    def __init__(self, app: ASGIApp, names: Iterable[str]) -> None:
        self._app, self._names = app, frozenset(name.lower() for name in names)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        problem = self._problem(Headers(scope=scope)) if scope["type"] == "http" else None
        if problem is None:
            await self._app(scope, receive, send)
        else:
            await answer(RefusalError(403, problem))(scope, receive, send)

    def _problem(self, headers: Headers) -> str | None:
        host, origin = headers.get("host", ""), headers.get("origin")
        if self._names and _host_name(host) not in self._names:
            return "this server does not answer to the name in the address; use its own, or start it with --names"
        if origin is not None and urlsplit(origin).netloc != host and _host_name(urlsplit(origin).netloc) not in self._names:
            return "pages of other sites may not use this server"
        return None


def _host_name(netloc: str) -> str:
    with suppress(ValueError):
        return (urlsplit(f"//{netloc}").hostname or "").lower()
    return ""


class BoundedUploads:
    """Uploads that are too large, too slow, or too many at a time are refused."""

    def __init__(self, app: ASGIApp, limits: Limits) -> None:
        self._app, self._limits = app, limits
        self._under_way = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["method"] != "POST":
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        try:
            self._check_size(int(headers.get("content-length") or 0))
            if self._under_way >= self._limits.queue:
                raise RefusalError(503, f"{self._under_way} uploads are under way already; try again in a while")
        except RefusalError as refusal:
            if "expect" not in headers:  # who asks first has not begun to send
                await self._drain(receive)
            await answer(refusal)(scope, receive, send)
            return
        self._under_way += 1
        try:
            await self._app(scope, self._bounded(receive), send)
        finally:
            self._under_way -= 1

    def _check_size(self, size: int) -> None:
        if size > self._limits.upload_bytes:
            raise RefusalError(413, f"the upload is too large; at most {self._limits.upload:g} MiB are taken here")

    def _bounded(self, receive: Receive) -> Receive:
        deadline, received, complete = monotonic() + self._limits.upload_seconds, 0, False

        async def bounded() -> Message:
            nonlocal received, complete
            if complete:  # all there is to come is that the visitor is gone
                return await receive()
            try:
                async with asyncio.timeout(deadline - monotonic()):
                    message = await receive()
            except TimeoutError:
                seconds = f"{self._limits.upload_seconds:g}"
                raise HTTPException(408, f"the upload took more than {seconds} seconds; choose a smaller file") from None
            received += len(message.get("body", b""))
            complete = not message.get("more_body", False)
            try:
                self._check_size(received)
            except RefusalError as refusal:
                if not complete:
                    await self._drain(receive)
                # the form's parser lets no other exception through
                raise HTTPException(refusal.status, refusal.sentence) from None
            return message

        return bounded

    async def _drain(self, receive: Receive) -> None:
        left = DRAIN_UPLOADS * self._limits.upload_bytes
        with suppress(TimeoutError):
            async with asyncio.timeout(DRAIN_SECONDS):
                while left > 0:
                    message = await receive()
                    left -= len(message.get("body", b""))
                    if not message.get("more_body", False):
                        return


def answer(refusal: RefusalError) -> JSONResponse:
    """The form in which every mistake is told."""
    headers = {"Retry-After": "10"} if refusal.status == 503 else None
    return JSONResponse({"detail": refusal.sentence}, refusal.status, headers)
