"""What the API says, as JSON."""

from enum import StrEnum

from pydantic import BaseModel, Field

from sckn.web.jobs import Job, Jobs, State
from sckn.web.limits import Limits

__all__ = ["ClassScore", "FileFormat", "Health", "Info", "JobStatus", "LimitsInfo", "ModelInfo", "Problem", "Quality"]
__all__ += ["Scores"]


class Quality(StrEnum):
    """The better model, or the one for processors."""

    QUALITY = "quality"
    FAST = "fast"


class FileFormat(StrEnum):
    """Of a result: without loss, or smaller."""

    PNG = "png"
    JPEG = "jpeg"


class Problem(BaseModel):
    """What went wrong, and what to do."""

    detail: str = Field(description="One sentence")


class Health(BaseModel):
    """That the server lives, and how much it has to do."""

    status: str = "ok"
    waiting: int = Field(description="Photos in the line")
    running: int = Field(description="Photos that are being made larger")


class ModelInfo(BaseModel):
    """A model, and whether it can be used here."""

    name: str
    available: bool
    problem: str | None = Field(None, description="Why it cannot be used, and what the keeper of the server can do")
    scale: int | None = Field(None, description="Of an upscaler")
    quality: Quality | None = Field(None, description="Of an upscaler")


class LimitsInfo(BaseModel):
    """What the server takes."""

    upload_bytes: int = Field(description="Most bytes of an upload")
    input_pixels: int = Field(description="Most pixels of an image")
    output_pixels: int = Field(description="Most pixels of a result")
    seconds: float = Field(description="Most seconds of work on one photo")
    patience: float = Field(description="Seconds after which work stops that nobody asks about")
    keep: float = Field(description="Seconds after which a result vanishes")

    @classmethod
    def of(cls, limits: Limits) -> "LimitsInfo":
        return cls(**{name: getattr(limits, name) for name in cls.model_fields})


class Info(BaseModel):
    """What the server offers."""

    version: str
    upscalers: list[ModelInfo]
    classifiers: list[ModelInfo]
    limits: LimitsInfo


class JobStatus(BaseModel):
    """How far the work on a photo is."""

    id: str = Field(description="Who knows it can see and delete the job; nobody can guess it")
    state: State
    ahead: int = Field(description="Photos that come before this one, while it waits")
    tiles_done: int = Field(description="Parts of the photo that are done")
    tiles: int = Field(description="Parts of the photo; 0 until the first is done")
    width: int = Field(description="Of the result")
    height: int = Field(description="Of the result")
    file_name: str = Field(description="Proposed for the result")
    problem: str | None = Field(description="Why the work failed, if it did")
    notes: list[str] = Field(description="What came with the photo and is not, or not as it was, in the result")

    @classmethod
    def of(cls, job: Job, jobs: Jobs) -> "JobStatus":
        return cls(
            id=job.id,
            state=job.state,
            ahead=jobs.ahead_of(job),
            tiles_done=job.tiles_done,
            tiles=job.tiles,
            width=job.size[0],
            height=job.size[1],
            file_name=job.result_name,
            problem=job.problem,
            notes=job.notes,
        )


class ClassScore(BaseModel):
    """A class and how well an image fits it."""

    name: str
    score: float


class Scores(BaseModel):
    """All classes of a model, best first. Scores order them; they are no probabilities."""

    model: str
    scores: list[ClassScore]
