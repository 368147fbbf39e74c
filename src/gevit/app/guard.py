"""Who may talk to the server: pages that it serves itself, under a name that is its own.

Any web page can make a browser send requests to 127.0.0.1. The browser says from where (`Origin`, `Sec-Fetch-Site`)
and to which name (`Host`), which gives away a page that had its own name point here. Programs that are no browsers
send no origin, and are let in.
"""

from __future__ import annotations

import ipaddress
from urllib.parse import urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

SECURITY = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}


class Guard:
    """Refuses requests of other pages, and forbids our own page everything from outside."""

    def __init__(self, app: ASGIApp, host: str) -> None:
        """Guard `app`, which listens on `host`."""
        self.app, self.host = app, host

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request, or refuse it."""
        if scope["type"] == "lifespan":
            await self.app(scope, receive, send)
            return

        async def send_guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message).update(SECURITY)
            await send(message)

        reason = refusal(Headers(scope=scope), self.host, scope["path"])
        answer = JSONResponse({"error": reason}, status_code=403) if reason else self.app
        await answer(scope, receive, send_guarded)


def refusal(headers: Headers, bound: str, path: str) -> str:
    """Why a request is refused; empty if it is not."""
    host = headers.get("host", "")
    if not is_own_name(host, bound):
        return f"this server does not answer to the name {host[:80]!r}; open it by its address, e.g. http://127.0.0.1"
    origin = headers.get("origin")
    if origin is not None and origin.lower() != f"http://{host.lower()}":
        return "requests of other web pages are refused"
    # A link from elsewhere to the page itself is fine.
    if path != "/" and headers.get("sec-fetch-site", "none") not in ("same-origin", "none"):
        return "requests of other web pages are refused"
    return ""


def is_own_name(host: str, bound: str) -> bool:
    """Whether a `Host` header names a server bound to `bound`, and cannot be a name that somebody else made up.

    >>> is_own_name("127.0.0.1:8642", "127.0.0.1"), is_own_name("evil.example:8642", "127.0.0.1")
    (True, False)
    """
    try:
        name = urlsplit(f"//{host}").hostname or ""
    except ValueError:
        return False
    if name in ("localhost", bound.lower()):
        return True
    try:
        address = ipaddress.ip_address(name)
    except ValueError:
        return False
    return address.is_loopback or _listens_beyond(bound)  # an address is no name that could be made to point here


def _listens_beyond(bound: str) -> bool:
    try:
        return not ipaddress.ip_address(bound).is_loopback
    except ValueError:
        return bound != "localhost"
