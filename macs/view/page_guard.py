"""What is refused before the page's server sees it: addresses that it would fetch, and bodies larger than any event's."""

from __future__ import annotations

from typing import Any, Awaitable, Callable

MAX_BODY = 1_000_000  # bytes of an event or a call; uploads have a limit of their own
Message = dict[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]


class Guard:
    """ASGI middleware around the page."""

    def __init__(self, app: Callable[..., Awaitable[None]]) -> None:
        self._app = app

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        """Pass a request on, or answer it with 403 or 413 and one sentence."""
        if scope["type"] != "http":
            return await self._app(scope, receive, send)
        if "://" in scope["path"]:
            return await _refuse(send, 403, "Addresses are not fetched.")
        if scope["method"] == "POST" and not scope["path"].endswith("/upload"):
            said = dict(scope["headers"]).get(b"content-length", b"")
            if said.isdigit() and int(said) > MAX_BODY:
                return await _refuse(send, 413, f"A request has at most {MAX_BODY:,} bytes; upload files first.")
            receive = _counted(receive)
        await self._app(scope, receive, send)


def _counted(receive: Receive) -> Receive:
    """Return ``receive`` that hangs up on a body which did not say its length and is too long."""
    got = 0

    async def counted() -> Message:
        nonlocal got
        message = await receive()
        got += len(message.get("body", b""))
        return message if got <= MAX_BODY else {"type": "http.disconnect"}

    return counted


async def _refuse(send: Send, status: int, sentence: str) -> None:
    headers = [(b"content-type", b"text/plain; charset=utf-8")]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": sentence.encode()})
