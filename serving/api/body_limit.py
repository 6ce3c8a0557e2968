"""Request bodies have an end: whatever is longer is refused before it is parsed, and never held in memory whole."""

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from serving.api.errors import failure

MOST_BYTES = 1_000_000


class BodyLimit:
    """Middleware: reads a body of up to `most_bytes` and hands it on in one piece; a longer one is answered with 413."""

    def __init__(self, app: ASGIApp, most_bytes: int = MOST_BYTES):
        self.app, self.most_bytes = app, most_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serves one request."""
        if scope["type"] != "http":
            return await self.app(scope, receive, send)
        declared = dict(scope["headers"]).get(b"content-length", b"0")
        too_long = declared.isdigit() and int(declared) > self.most_bytes
        body = bytearray()
        more = not too_long
        while more:
            message = await receive()
            if message["type"] != "http.request":
                return None  # the client has gone
            body += message.get("body", b"")
            too_long, more = len(body) > self.most_bytes, message.get("more_body", False)
            more = more and not too_long
        if too_long:
            sentence = f"the request's body is longer than {self.most_bytes} bytes: send its events in smaller batches"
            return await failure(413, sentence)(scope, receive, send)
        whole: list[Message] = [{"type": "http.request", "body": bytes(body), "more_body": False}]

        async def again() -> Message:
            return whole.pop() if whole else await receive()

        return await self.app(scope, again, send)
