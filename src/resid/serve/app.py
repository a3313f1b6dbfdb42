"""The application: its routes, and what they answer."""

import asyncio
import contextlib
import json
import logging
import sys
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import asdict
from importlib.resources import files
from typing import Annotated, Any

from fastapi import FastAPI, HTTPException, Query, Request, Response, Security
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from fastapi.security import APIKeyHeader
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from pydantic import ValidationError
from pydantic_core import to_json
from starlette.exceptions import HTTPException as StarletteHTTPException

from resid.core.errors import InputError, shown
from resid.data.catalogue import parse_ids
from resid.data.dataset import Dataset
from resid.serve.batching import Batcher, Options, QueueFull
from resid.serve.guard import Guard
from resid.serve.holder import Holder, Served
from resid.serve.keys import Key
from resid.serve.models import (
    Branch,
    FoundItems,
    Health,
    Item,
    ModelInfo,
    Problem,
    RecommendRequest,
    RecommendResponse,
    Reloaded,
    SimilarItems,
    Version,
)
from resid.serve.observe import Metrics, Observe
from resid.serve.settings import ServeSettings
from resid.serve.views import UnknownError

log = logging.getLogger("resid.serve")

_PAGE = {"index.html": "text/html", "page.js": "text/javascript", "style.css": "text/css", "icon.svg": "image/svg+xml"}
_PROBLEMS: dict[int | str, dict[str, Any]] = {
    status: {"model": Problem, "description": about}
    for status, about in {
        401: "No valid API key.",
        404: "There is no such item, prefix or model.",
        408: "The body did not arrive in time.",
        413: "The body is too large.",
        422: "The request is not valid.",
        503: "The service is busy; try again after the seconds of the header Retry-After.",
    }.items()
}
_EXPLAINED_USERS = 16  # per request, as explanations are made one by one
_Limit = Annotated[int, Query(ge=1, le=200, description="Entries that are listed.")]
_Offset = Annotated[int, Query(ge=0, le=2**31, description="Entries that are skipped.")]
_Model = Annotated[str | None, Query(description="The name of the model, if the service has several.")]


def create_app(
    holders: Mapping[str, Holder],
    settings: ServeSettings | None = None,
    keys: Sequence[Key] = (),
    data: Dataset | None = None,
) -> FastAPI:
    """Return the ASGI application that serves models.

    Parameters
    ----------
    holders
        The models by name, see `resid.serve.holder.hold_models`; the first is the default.
    settings
        Limits and batching.
    keys
        API keys; without any, only requests to localhost are answered.
    data
        The Dataset whose users requests can name.
    """
    library = str(sys.modules["resid"].__version__)
    settings = settings or ServeSettings()
    metrics = Metrics()
    state = _State(holders, settings, metrics, data)

    @contextlib.asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        state.batcher = Batcher(
            settings.batch_size, settings.batch_wait, settings.max_queue, metrics.batch_users.observe
        )
        watch = asyncio.create_task(state.watch()) if settings.reload_every else None
        yield
        if watch is not None:
            watch.cancel()
        await asyncio.to_thread(state.batcher.stop)

    app = FastAPI(
        title="resid",
        version=library,
        description="Recommendations by semantic IDs. Invalid requests are answered with one sentence, `detail`.",
        lifespan=lifespan,
        docs_url=None,  # FastAPI's page loads its scripts from another site
        redoc_url=None,
        responses=_PROBLEMS,
        dependencies=[Security(APIKeyHeader(name="X-API-Key", auto_error=False))] if keys else [],
    )
    app.add_middleware(Guard, keys=keys, max_body=settings.max_body, timeout=settings.timeout)
    app.add_middleware(Observe, metrics=metrics)  # outside, so that refused requests are counted
    _answer_errors(app)

    # The body is parsed and the answer is written here, as what FastAPI does for both would cost as much as the rest.
    body = {"content": {"application/json": {"schema": RecommendRequest.model_json_schema()}}, "required": True}

    @app.post(
        "/recommend", summary="Recommend items", response_model=RecommendResponse, openapi_extra={"requestBody": body}
    )
    async def recommend(request: Request) -> Response:
        answer = await state.recommend(await _parse(request))
        return Response(to_json(answer), media_type="application/json")

    @app.get("/items", summary="Search the catalogue")
    async def items(
        search: Annotated[str, Query(max_length=200, description="Words that the id or the texts contain.")] = "",
        limit: _Limit = 20,
        offset: _Offset = 0,
        model: _Model = None,
    ) -> FoundItems:
        return await asyncio.to_thread(state.served(model).view.search, search, limit, offset)

    @app.get("/items/{item:path}", summary="Get an item")
    async def item(item: str, model: _Model = None) -> Item:
        view = state.served(model).view
        return view.item(view.index_of(item))

    @app.get("/similar/{item:path}", summary="Get similar items")
    async def similar(
        item: str, k: Annotated[int, Query(ge=1, le=200, description="Number of items.")] = 10, model: _Model = None
    ) -> SimilarItems:
        return await asyncio.to_thread(state.served(model).view.similar, item, k)

    @app.get("/ids", summary="Get the first codes of all semantic IDs")
    async def root(limit: _Limit = 100, offset: _Offset = 0, model: _Model = None) -> Branch:
        return await asyncio.to_thread(state.served(model).view.branch, [], limit, offset)

    @app.get("/ids/{prefix:path}", summary="Get what is under a prefix of semantic IDs, for example 3/7")
    async def branch(prefix: str, limit: _Limit = 100, offset: _Offset = 0, model: _Model = None) -> Branch:
        codes = prefix.removesuffix("/").split("/")
        if not all(code.isascii() and code.isdecimal() and len(code) <= 10 for code in codes):
            raise UnknownError(f"{shown(prefix)} is not a prefix of codes, for example 3/7.")
        return await asyncio.to_thread(state.served(model).view.branch, [int(code) for code in codes], limit, offset)

    @app.get("/health/live", summary="Whether the process is alive")
    async def live() -> Health:
        return Health(status="ok")

    @app.get("/health/ready", summary="Whether the service accepts requests")
    async def ready() -> Health:
        if not state.batcher.ready:
            raise _busy("the service cannot accept requests at the moment.")
        return Health(status="ok")

    @app.get("/version", summary="Versions, models and limits")
    async def version() -> Version:
        return state.version(library)

    @app.get("/metrics", summary="Metrics for Prometheus", response_class=Response)
    async def exposition() -> Response:
        return Response(state.exposition(), media_type=CONTENT_TYPE_LATEST)

    @app.post("/reload", summary="Take up the models that the folders have now (admins)")
    async def reload() -> Reloaded:
        try:
            return Reloaded(changed={name: await state.refresh(name, always=True) for name in holders})
        except InputError as error:
            raise HTTPException(409, str(error)) from error

    _serve_page(app)
    return app


class _State:
    """What the routes share."""

    batcher: Batcher  # set when the application starts

    def __init__(
        self, holders: Mapping[str, Holder], settings: ServeSettings, metrics: Metrics, data: Dataset | None
    ) -> None:
        self.holders, self.settings, self.metrics, self.data = holders, settings, metrics, data
        self._default = next(iter(holders))

    def served(self, name: str | None) -> Served:
        """Return the model of a name, or the first one."""
        holder = self.holders.get(self._default if name is None else name)
        if holder is None:
            raise UnknownError(f"there is no model {shown(name)}; the models are {', '.join(self.holders)}.")
        return holder.current

    async def recommend(self, request: RecommendRequest) -> dict[str, Any]:
        """Check a request against the limits, rank its users in the next batch, and return a `RecommendResponse`."""
        self._check_limits(request)
        served = self.served(request.model)
        view, model = served.view, served.model
        histories, users = self._histories(request, served)
        options = Options(
            request.k,
            request.exclude_seen,
            None if request.allow is None else tuple(view.parse(request.allow)),
            None if request.deny is None else tuple(view.parse(request.deny)),
            None if request.where is None else json.dumps(request.where, sort_keys=True),
        )
        results: list[dict[str, Any]] = []
        if histories:
            if request.k > len(model.catalogue_):
                raise InputError(f"k must be at most {len(model.catalogue_):,}, the size of the catalogue.")
            try:
                async with asyncio.timeout(self.settings.timeout):
                    items, scores = await self.batcher.submit(model, histories, options, users)
                    for history, row, values in zip(histories, items, scores.tolist(), strict=True):
                        entries = view.recommended(row, values, details=request.details)
                        if request.why:
                            ids = [entry["item"] for entry in entries]
                            reasons = await asyncio.to_thread(view.why, history, ids)
                            entries = [entry | {"why": why} for entry, why in zip(entries, reasons, strict=True)]
                        results.append({"items": entries, "skipped": view.unknown(history)})
            except QueueFull as error:
                raise _busy("too many requests are waiting; try again.") from error
            except TimeoutError as error:
                raise _busy("the model did not answer in time; try again.") from error
        return {"model": served.name, "version": served.version, "results": results}

    def _check_limits(self, request: RecommendRequest) -> None:
        limits = self.settings
        longest = max(map(len, request.histories or ()), default=0)
        users = max(len(request.histories or ()), len(request.users or ()))
        listed = len(request.allow or ()) + len(request.deny or ())
        for what, given, most in (
            ("k", request.k, limits.max_k),
            ("the number of users", users, limits.max_users),
            ("the length of a history", longest, limits.max_history),
            ("the length of 'allow' and 'deny'", listed, limits.max_history),
            ("the number of users with 'why'", users if request.why else 0, _EXPLAINED_USERS),
        ):
            if given > most:
                raise InputError(f"{what} must be at most {most:,}, not {shown(given)}.")

    def _histories(self, request: RecommendRequest, served: Served) -> tuple[list[list[Any]], list[Any] | None]:
        """Return the histories of a request, and the user ids if the model has embeddings of users."""
        users, known = request.users, served.model.user_ids_
        typed = parse_ids(users, known.dtype) if users is not None and known is not None else None
        if request.histories is not None:
            if users is not None and len(users) != len(request.histories):
                raise InputError("'users' must have one user id for each history.")
            return [served.view.parse(history) for history in request.histories], typed
        if users is None:
            raise InputError("the request must have 'histories' or 'users'.")
        if self.data is None:
            raise InputError("this service knows no users, as it was started without --data; send 'histories'.")
        found = parse_ids(users, self.data.user_ids.dtype)
        return [served.view.parse(self.data.history(user).to_list()) for user in found], typed

    async def refresh(self, name: str, *, always: bool = False) -> bool:
        """Take up the model that a folder has now, in another thread; return whether it is another one."""
        holder = self.holders[name]
        known = holder.problem
        try:
            changed = await asyncio.to_thread(holder.refresh, always=always)
        except InputError as error:
            if str(error) != known:  # once, not at every look
                self.metrics.swaps.labels(name, "refused").inc()
                log.error("model refused", extra={"facts": {"model": name, "reason": str(error)}})
            raise
        if changed:
            self.metrics.swaps.labels(name, "loaded").inc()
            log.info("model loaded", extra={"facts": {"model": name, "version": holder.current.version}})
        return changed

    async def watch(self) -> None:
        """Take up new models as they appear in their folders."""
        while True:
            await asyncio.sleep(self.settings.reload_every)
            for name in self.holders:
                try:
                    await self.refresh(name)
                except InputError:
                    continue  # logged, and tried again: the folder may be incomplete yet
                except Exception:
                    log.exception("model not loaded", extra={"facts": {"model": name}})

    def version(self, library: str) -> Version:
        """Return what is being served, and the limits."""
        infos = []
        for holder in self.holders.values():
            served = holder.current
            model = served.model
            infos.append(
                ModelInfo(
                    name=served.name,
                    kind=model.kind,
                    version=served.version,
                    loaded=served.loaded,
                    items=len(model.catalogue_),
                    fields=list(model.catalogue_.field_names),
                    levels=None if model.ids_ is None else list(model.ids_.level_sizes),
                    problem=holder.problem,
                )
            )
        limits = {name: value for name, value in asdict(self.settings).items() if name.startswith("max_")}
        return Version(resid=library, models=infos, limits=limits, users=self.data is not None)

    def exposition(self) -> bytes:
        """Return the metrics in the text format of Prometheus."""
        self.metrics.waiting.set(self.batcher.waiting)
        self.metrics.items.clear()
        for holder in self.holders.values():
            served = holder.current
            self.metrics.items.labels(served.name, served.version).set(len(served.model.catalogue_))
        return generate_latest(self.metrics.registry)


async def _parse(request: Request) -> RecommendRequest:
    """Return the content of a request for recommendations."""
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json":  # what a form of another site cannot send
        raise InputError("the header Content-Type must be application/json.")
    try:
        return RecommendRequest.model_validate_json(await request.body())
    except ValidationError as error:
        found = error.errors(include_url=False, include_context=False, include_input=False)
        raise RequestValidationError([{**each, "loc": ("body", *each["loc"])} for each in found]) from error


def _busy(sentence: str) -> HTTPException:
    return HTTPException(503, sentence, {"Retry-After": "1"})


def _answer_errors(app: FastAPI) -> None:
    """Answer all errors with one JSON sentence."""

    def answer(status: int, sentence: str, headers: Mapping[str, str] | None = None) -> JSONResponse:
        return JSONResponse({"detail": sentence.encode(errors="replace").decode()}, status, headers)

    @app.exception_handler(InputError)
    async def invalid(_: Request, error: InputError) -> JSONResponse:
        return answer(404 if isinstance(error, UnknownError) else 422, str(error))

    @app.exception_handler(RequestValidationError)
    async def malformed(_: Request, error: RequestValidationError) -> JSONResponse:
        first = error.errors()[0]
        place = ".".join(
            str(part) for part in first["loc"][1:] if not isinstance(part, int) or first["type"] != "json_invalid"
        )
        return answer(422, f"{shown(place)}: {first['msg']}." if place else f"the request: {first['msg']}.")

    @app.exception_handler(StarletteHTTPException)
    async def refused(_: Request, error: StarletteHTTPException) -> JSONResponse:
        return answer(error.status_code, str(error.detail), error.headers)

    @app.exception_handler(Exception)
    async def failed(_: Request, error: Exception) -> JSONResponse:
        return answer(500, "the service failed to answer this request; its log says why.")


def _serve_page(app: FastAPI) -> None:
    """Serve the files of the page from memory, so that no path of a request reaches the file system."""
    folder = files("resid.serve") / "page"
    content = {name: (folder / name).read_bytes() for name in _PAGE}

    @app.get("/", include_in_schema=False)
    async def page() -> Response:
        return Response(content["index.html"], media_type=_PAGE["index.html"])

    @app.get("/page/{name}", include_in_schema=False)
    async def asset(name: str) -> Response:
        if name not in content:
            raise UnknownError("there is no such file.")
        return Response(content[name], media_type=_PAGE[name])
