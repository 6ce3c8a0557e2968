"""Runs the application until it is interrupted."""

import gc
import socket

from contracts.errors import BadInput
from contracts.progress import say
from contracts.workspace import Workspace
from serving.api.app import create_app


def serve(workspace: Workspace, redis_url: str, host: str = "127.0.0.1", port: int = 8080) -> None:
    """Serves feeds and the page on `host`:`port`, loopback by default. `BadInput` when the port is taken."""
    import uvicorn

    require_port(host, port)
    app = create_app(workspace, redis_url)
    # The collector's pauses make the tail: what start-up made is never looked at again, and less often later on.
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 50, 100)
    say(f"feeds and page on http://{host}:{port}/")
    uvicorn.run(app, host=host, port=port, log_level="warning", access_log=False)


def require_port(host: str, port: int) -> None:
    """`BadInput` when `host`:`port` cannot be served on."""
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            raise BadInput(
                f"port {port} of {host} cannot be served on ({error.strerror}): choose another with --port"
            ) from None
