"""The application in uvicorn."""

import os
import socket
from collections.abc import Callable
from typing import Any

import uvicorn

from sckn.web.app import create_app
from sckn.web.limits import Limits
from sckn.web.private_folder import private_folder
from sckn.web.service import Service

__all__ = ["run_server"]

CLOSING_SECONDS = 5  # for connections that are open when the server stops


class _Server(uvicorn.Server):
    def __init__(self, config: uvicorn.Config, service: Service, ready: Callable[[dict[str, str | None]], None]) -> None:
        super().__init__(config)
        self._service, self._ready = service, ready

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        stock = await self._service.take_stock()
        await super().startup(sockets)
        if self.started:
            self._ready(stock)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        await self._service.jobs.close()  # who watches a job would keep a connection open
        await super().shutdown(sockets)


def run_server(
    listener: socket.socket,
    limits: Limits,
    ready: Callable[[dict[str, str | None]], None],
    *,
    names: tuple[str, ...],
    **settings: Any,
) -> None:
    """Serve until a signal ends it. `ready` is called with what each model lacks, if anything; `settings` are the service's."""
    # where other programs work, too, threads that wait for one another would burn the time that they wait for
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # which workers read when they begin
    with private_folder() as folder:
        service = Service(limits, folder, **settings)
        config = uvicorn.Config(
            create_app(service, names),
            log_level="warning",
            access_log=False,  # who visits is nobody's concern
            server_header=False,
            timeout_graceful_shutdown=CLOSING_SECONDS,
        )
        _Server(config, service, ready).run([listener])
