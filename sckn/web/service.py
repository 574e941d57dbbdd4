"""`Service`: the models that can be used, and the workers that use them."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

from sckn.shipped import CLASSIFIER, FACTORS, UPSCALERS, upscaler_name
from sckn.version import __version__
from sckn.web import tasks
from sckn.web.jobs import Jobs
from sckn.web.limits import Limits, RefusalError
from sckn.web.pool import Pool
from sckn.web.schema import Info, LimitsInfo, ModelInfo, Quality
from sckn.web.worker import WorkerLostError

__all__ = ["Service"]

CLASSIFIERS = (CLASSIFIER,)
# Reading one image or classifying it; longer than that takes only what was made to take long.
QUICK_SECONDS = 60.0
FIRST_SECONDS = 300.0  # to load all models


class Service:
    """What the API needs. Quick work has a worker of its own, so that it does not wait for the long one.

    Parameters
    ----------
    folder: for the files of visitors, of which none is left when the service has ended.
    workers: photographs that are made larger at a time. threads: of the processor, for each.
    """

    def __init__(self, limits: Limits, folder: Path, *, device: str, workers: int, threads: int) -> None:
        self.limits, self.folder, self._device = limits, folder, device
        self._long, self._quick = Pool(workers, threads), Pool(1, 1)
        self.jobs = Jobs(self._long, limits, device, folder)
        self._stock: dict[str, str | None] = {}

    async def take_stock(self) -> dict[str, str | None]:
        """Load every model; for each nothing if it can be used, or why it cannot."""
        self._stock = await self._quick.run(
            tasks.take_stock, seconds=FIRST_SECONDS, upscalers=UPSCALERS, classifiers=CLASSIFIERS, device=self._device
        )
        return self._stock

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """While this lasts, old jobs are swept; at its end all are removed, and the processes ended."""
        sweeping = asyncio.create_task(self.jobs.sweep())
        try:
            yield
        finally:
            sweeping.cancel()
            with suppress(asyncio.CancelledError):
                await sweeping
            await self.jobs.close()
            await asyncio.to_thread(self._close_pools)

    def _close_pools(self) -> None:
        self._long.close()
        self._quick.close()

    def info(self) -> Info:
        """What is offered."""
        return Info(
            version=__version__,
            upscalers=[
                self._model(upscaler_name(scale, fast=quality == Quality.FAST), scale=scale, quality=quality)
                for scale in FACTORS
                for quality in Quality
            ],
            classifiers=[self._model(name) for name in CLASSIFIERS],
            limits=LimitsInfo.of(self.limits),
        )

    def _model(self, name: str, **fields: Any) -> ModelInfo:
        problem = self._stock[name]
        return ModelInfo(name=name, available=problem is None, problem=problem, **fields)

    def upscaler(self, scale: int, quality: Quality) -> str:
        """The name of a model that is there."""
        if scale not in FACTORS:
            raise RefusalError(422, f"scale must be one of {', '.join(map(str, FACTORS))}, got {scale}")
        return self._usable(upscaler_name(scale, fast=quality == Quality.FAST))

    def classifier(self) -> str:
        """The name of a model that is there."""
        return self._usable(CLASSIFIERS[0])

    def _usable(self, name: str) -> str:
        if self._stock[name] is not None:
            there = ", ".join(each for each, problem in self._stock.items() if problem is None) or "none"
            raise RefusalError(503, f"the model {name} cannot be used on this server; those that can: {there}")
        return name

    async def inspect(self, path: Path, *, lossless: bool) -> tuple[int, int]:
        """Width and height of a photograph that can be made larger."""
        return await self._quickly(tasks.inspect, path, lossless=lossless)

    async def classify(self, path: Path, model: str) -> list[tuple[str, float]]:
        """Classes with scores, best first."""
        return await self._quickly(tasks.classify, path, model=model, device=self._device)

    async def _quickly(self, task: Any, path: Path, **arguments: Any) -> Any:
        try:
            return await self._quick.run(
                task, seconds=QUICK_SECONDS, path=str(path), most_pixels=self.limits.input_pixels, **arguments
            )
        except TimeoutError:
            raise RefusalError(422, f"the image could not be read in {QUICK_SECONDS:g} seconds; choose another") from None
        except WorkerLostError:
            raise RefusalError(422, "the image could not be read, and the attempt broke off; choose another") from None
