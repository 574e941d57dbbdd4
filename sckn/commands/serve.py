"""`sckn serve`."""

import importlib.util
import socket
from typing import Annotated

import torch
import tyro

from sckn.commands.options import Device, MaybeWhole, chosen_device
from sckn.extras import MissingPackageError
from sckn.settings import whole_number
from sckn.web.limits import Limits

__all__ = ["serve"]

PACKAGES = {"fastapi": "fastapi", "uvicorn": "uvicorn", "python_multipart": "python-multipart"}
LOOPBACK = ("127.0.0.1", "localhost", "::1")
CORES_FOR_ONE = 4  # more of them hardly make one photo faster


def serve(
    host: str = "127.0.0.1",
    port: int = 8000,
    names: Annotated[tuple[str, ...], tyro.conf.arg(metavar="[STR ...]", help_behavior_hint="")] = (),
    workers: MaybeWhole = None,
    limits: Annotated[Limits, tyro.conf.arg(name="")] = Limits(),  # noqa: B008  (it is frozen)
    device: Device = "auto",
) -> None:
    """Serve a page to enlarge and classify images, and its API.

    Example: sckn serve --port 8080

    Args:
        host: 0.0.0.0 lets others in.
        port: 0 takes a free one.
        names: Host names, where it is behind a proxy.
        workers: Photos at a time; else one for 4 cores.
        limits: How much of the computer visitors may take.
        device: auto takes a GPU if there is one.
    """
    _check_packages()
    from sckn.web.server import run_server  # which needs them

    place = chosen_device(device).type
    cores = torch.get_num_threads()  # that may be used, which OMP_NUM_THREADS can bound
    default = 1 if place == "cuda" else max(1, cores // CORES_FOR_ONE)
    count = default if workers is None else whole_number("workers", workers)
    with _listener(host, port) as listener:
        address = f"http://{f'[{host}]' if ':' in host else host}:{listener.getsockname()[1]}"

        def ready(stock: dict[str, str | None]) -> None:
            offered = [name for name, problem in stock.items() if problem is None]
            for problem in filter(None, stock.values()):
                print(f"not offered: {problem}")
            print(f"offered: {', '.join(offered) or 'nothing; put models into a folder and name it in SCKN_MODELS'}")
            print(f"sckn is at {address}, its API at {address}/docs; Ctrl-C stops it", flush=True)

        known = (*LOOPBACK, *names) if host in LOOPBACK else names
        run_server(listener, limits, ready, names=known, device=place, workers=count, threads=max(1, cores // count))


def _check_packages() -> None:
    missing = [package for module, package in PACKAGES.items() if importlib.util.find_spec(module) is None]
    if missing:
        raise MissingPackageError("sckn serve", ", ".join(missing), "web")


def _listener(host: str, port: int) -> socket.socket:
    if not 0 <= port < 2**16:
        raise ValueError(f"port must be a number from 0 to 65535, got {port}")
    try:
        family, _, _, _, place = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
        return socket.create_server(place, family=family, backlog=2048)
    except OSError as error:
        raise ValueError(f"{host} port {port} cannot be listened at ({error}); choose another with --host or --port") from None
