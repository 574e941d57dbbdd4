"""The application: the page, the JSON API behind it, and its documentation."""

import asyncio
import re
import shutil
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Annotated, Any

from fastapi import APIRouter, FastAPI, File, Form, Request, UploadFile
from fastapi.exceptions import RequestValidationError
from fastapi.responses import FileResponse, JSONResponse, StreamingResponse
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.staticfiles import StaticFiles

from sckn.shipped import FACTORS
from sckn.version import __version__
from sckn.web.guard import BoundedUploads, KnownVisitors, StrictHeaders, answer
from sckn.web.limits import RefusalError
from sckn.web.schema import ClassScore, FileFormat, Health, Info, JobStatus, Problem, Quality, Scores
from sckn.web.service import Service

__all__ = ["create_app"]

STATIC = Path(__file__).parent / "static"
SUFFIXES = {FileFormat.PNG: ".png", FileFormat.JPEG: ".jpg"}
VISITOR_LEFT = 499  # nginx's number; nobody reads this answer
# FastAPI can tell a collector about every request, if the environment says so; this server tells nobody.
NO_TELEMETRY: Any = {"tracing": False, "metrics": False, "logs": False, "auto_configure": False}
DESCRIPTION = (
    "Upload a photo to get a job, watch it through its events or by asking for its status, fetch the result, and delete the "
    "job. Work that nobody asks about is stopped after some seconds, and results vanish after some minutes. Every mistake is "
    'answered with {"detail": "one sentence"}, but for what is no HTTP at all.'
)

EVENTS_ARE = "Lines of `data: ` and the status of the job, as GET /api/jobs/{id} has it"
EVENTS = {"text/event-stream": {"schema": {"type": "string", "description": EVENTS_ARE}}}

Photo = Annotated[UploadFile, File(description="An image file")]


def _problems(*statuses: int) -> dict[int | str, dict[str, Any]]:
    meanings = {
        404: "There is no such job",
        408: "The upload took too long",
        409: "There is no result",
        413: "Too many bytes or pixels",
        415: "Not an image of a known format",
        422: "The image or a setting cannot be used",
        503: "There is no room, or the model is not here",
    }
    return {status: {"model": Problem, "description": meanings[status]} for status in statuses}


def create_app(service: Service, names: tuple[str, ...] = ()) -> FastAPI:
    """`names` are the hosts that requests may be addressed to, any if there are none."""

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        async with service.running():
            yield

    app = FastAPI(
        title="sckn",
        version=__version__,
        description=DESCRIPTION,
        lifespan=lifespan,
        docs_url=None,  # FastAPI's own page loads scripts from another site
        redoc_url=None,
        telemetry=NO_TELEMETRY,
        middleware=[
            Middleware(StrictHeaders),
            Middleware(KnownVisitors, names=names),
            Middleware(BoundedUploads, limits=service.limits),
        ],
        exception_handlers={
            RefusalError: _refused,
            HTTPException: _http_problem,
            RequestValidationError: _invalid,
            Exception: _broken,
        },
    )
    app.include_router(_routes(service), prefix="/api")
    _add_pages(app)
    return app


def _routes(service: Service) -> APIRouter:
    # the key keeps FastAPI from claiming its own form for answers with status 422
    others = {"4XX": "Any other mistake", "5XX": "Something went wrong in the server"}
    api = APIRouter(responses={status: {"model": Problem, "description": meaning} for status, meaning in others.items()})
    jobs, limits = service.jobs, service.limits

    @api.get("/health", tags=["server"])
    async def health() -> Health:
        """Tell that the server lives, and how much it has to do."""
        return Health(waiting=jobs.count("waiting"), running=jobs.count("running"))

    @api.get("/info", tags=["server"])
    async def info() -> Info:
        """Tell which models can be used here, why others cannot, and the limits."""
        return service.info()

    @api.post(
        "/jobs",
        tags=["photos"],
        status_code=202,
        response_description="The job has begun",
        responses=_problems(408, 413, 415, 422, 503),
    )
    async def upscale(
        request: Request,
        photo: Photo,
        scale: Annotated[int, Form(description="How many times as wide and high", json_schema_extra={"enum": FACTORS})] = 2,
        quality: Annotated[Quality, Form(description="The better model, or the fast one")] = Quality.QUALITY,
        format: Annotated[FileFormat, Form(description="Of the result")] = FileFormat.PNG,  # noqa: A002
    ) -> JobStatus:
        """Begin to make a photo larger. The answer has the job's id, which only you know."""
        model = service.upscaler(scale, quality)
        job = jobs.admit(_file_name(photo), scale=scale, model=model, suffix=SUFFIXES[format])
        try:
            await _keep(photo, job.upload)
            width, height = await service.inspect(job.upload, lossless=format == FileFormat.PNG)
            limits.check_result(width, height, scale)
            if await _has_left(request):  # nobody would ever know the job's id
                raise RefusalError(VISITOR_LEFT, "the visitor left")
        except BaseException:
            await jobs.remove(job)
            raise
        jobs.start(job, (width * scale, height * scale))
        return JobStatus.of(job, jobs)

    @api.get("/jobs/{id}", tags=["photos"], responses=_problems(404))
    async def status(id: str) -> JobStatus:  # noqa: A002
        """Tell how far a job is. Ask now and then: work that nobody asks about is stopped."""
        return JobStatus.of(jobs.find(id), jobs)

    @api.get(
        "/jobs/{id}/events",
        tags=["photos"],
        response_class=StreamingResponse,
        responses={
            **_problems(404),
            200: {"description": "Server-sent events", "content": EVENTS},
        },
    )
    async def events(id: str) -> StreamingResponse:  # noqa: A002
        """Send the status of a job, in JSON, whenever it changes and until it ends. Who closes this, and does not come back
        or ask for the status within some seconds, stops the work."""
        job = jobs.find(id)

        async def stream() -> AsyncIterator[str]:
            async for each in jobs.watch(job):
                yield f"data: {JobStatus.of(each, jobs).model_dump_json()}\n\n"

        return StreamingResponse(stream(), media_type="text/event-stream")

    @api.get(
        "/jobs/{id}/result",
        tags=["photos"],
        response_class=FileResponse,
        responses={
            **_problems(404, 409),
            200: {"description": "The larger photo", "content": {"image/png": {}, "image/jpeg": {}}},
        },
    )
    async def result(id: str) -> FileResponse:  # noqa: A002
        """Fetch the result of a job that is done; delete the job afterwards."""
        job = jobs.find(id)
        if job.state != "done":
            raise RefusalError(409, job.problem or "the photo is not done yet; wait until its state is done")
        return FileResponse(job.result, filename=job.result_name)

    @api.delete("/jobs/{id}", tags=["photos"], status_code=204, response_description="It is gone", responses=_problems(404))
    async def delete(id: str) -> None:  # noqa: A002
        """Stop the work on a photo if it is not done, and delete the photo and its result."""
        await jobs.remove(jobs.find(id))

    @api.post("/classify", tags=["images"], responses=_problems(408, 413, 415, 422, 503))
    async def classify(image: Photo) -> Scores:
        """Tell what an image shows, among the classes that the model knows."""
        model = service.classifier()
        with tempfile.TemporaryDirectory(dir=service.folder) as folder:
            path = Path(folder) / "upload"
            await _keep(image, path)
            scores = await service.classify(path, model)
        return Scores(model=model, scores=[ClassScore(name=name, score=score) for name, score in scores])

    return api


def _add_pages(app: FastAPI) -> None:
    @app.api_route("/", methods=["GET", "HEAD"], include_in_schema=False)
    async def index() -> FileResponse:
        return FileResponse(STATIC / "index.html")

    @app.api_route("/docs", methods=["GET", "HEAD"], include_in_schema=False)
    async def docs() -> FileResponse:
        return FileResponse(STATIC / "docs.html")

    app.mount("/static", StaticFiles(directory=STATIC))


async def _has_left(request: Request) -> bool:
    """Whether the visitor closed the connection. The first look lets uvicorn read on, which a large upload had paused; the
    second one sees what it read."""
    if await request.is_disconnected():
        return True
    await asyncio.sleep(0.01)
    return await request.is_disconnected()


async def _keep(upload: UploadFile, path: Path) -> None:
    def copy() -> int:
        with path.open("wb") as file:
            shutil.copyfileobj(upload.file, file)
            return file.tell()

    if not await asyncio.to_thread(copy):
        raise RefusalError(422, "the file is empty; choose an image")


def _file_name(upload: UploadFile) -> str:
    """The visitor's own, without folders or anything that a file system or a header might stumble over."""
    last = re.split(r"[/\\]", upload.filename or "")[-1]
    return re.sub(r"[^\w .()-]", "", last).strip(" .")[:80] or "photo"


async def _refused(_: Request, refusal: Exception) -> JSONResponse:
    assert isinstance(refusal, RefusalError)
    return answer(refusal)


async def _http_problem(request: Request, problem: Exception) -> JSONResponse:
    assert isinstance(problem, HTTPException)
    sentences = {
        400: "the form cannot be read; /docs tells what is expected",
        404: f"there is nothing at {request.url.path[:200]}; /docs tells what there is",
        405: "this cannot be asked so; see /docs",
    }
    sentence = sentences.get(problem.status_code, str(problem.detail))
    return JSONResponse({"detail": sentence}, problem.status_code, problem.headers)


async def _invalid(_: Request, error: Exception) -> JSONResponse:
    """The first mistake alone, as a sentence."""
    assert isinstance(error, RequestValidationError)
    first = error.errors()[0]
    mistake = "expected a file" if first["loc"][-1] in ("photo", "image") else f"{first['msg'][:1].lower()}{first['msg'][1:]}"
    return answer(RefusalError(422, f"{first['loc'][-1]}: {mistake}; /docs tells what is expected"))


async def _broken(_: Request, __: Exception) -> JSONResponse:
    return JSONResponse({"detail": "something went wrong in the server, which its keeper can read in its log"}, 500)
