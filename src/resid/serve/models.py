"""The requests and responses of the service, from which its OpenAPI description is made."""

from datetime import datetime
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, StrictBool, StrictInt, StrictStr

Id = StrictStr | StrictInt
History = list[Id]

_HISTORIES: list[Any] = [["B000000000", "B001494E89"], []]
_ITEM: dict[str, Any] = {
    "item": "B038453D70",
    "title": "Light strings",
    "id": [1, 0, 4],
    "fields": {"store": "Fjord", "categories": ["Music", "Guitars"]},
    "interactions": 57,
    "withdrawn": False,
}


class RecommendRequest(BaseModel):
    """Users to recommend items to."""

    model_config = ConfigDict(
        extra="forbid",
        json_schema_extra={
            "examples": [
                {"histories": _HISTORIES, "k": 5, "exclude_seen": True},
                {"histories": _HISTORIES[:1], "k": 3, "deny": ["B038453D70"], "details": True, "why": True},
            ]
        },
    )

    histories: list[History] | None = Field(
        None, description="One list of item ids per user, oldest first; an empty one gets the most popular items."
    )
    users: list[Id] | None = Field(
        None,
        description="User ids: of users whose histories are in the Dataset of the service (--data), or, beside `histories`, "
        "for a model with user embeddings.",
    )
    k: StrictInt = Field(10, ge=1, description="Number of items per user.")
    exclude_seen: StrictBool = Field(False, description="Exclude the items of the history.")
    allow: list[Id] | None = Field(None, description="The only items that may be recommended; all by default.")
    deny: list[Id] | None = Field(None, description="Items that must not be recommended.")
    where: dict[StrictStr, Any] | list[StrictStr] | None = Field(
        None,
        description="Conditions on the fields of items that may be recommended: a mapping such as "
        '{"store": "Fjord", "price": {"<": 20}}, or text such as ["store=Fjord", "price<20"].',
    )
    model: StrictStr | None = Field(None, description="The name of the model, if the service has several.")
    details: StrictBool = Field(False, description="Include title and fields of every item.")
    why: StrictBool = Field(False, description="Explain every item by the history; for few users per request.")


class Item(BaseModel):
    """An item of the catalogue."""

    model_config = ConfigDict(json_schema_extra={"examples": [_ITEM]})

    item: str | int
    title: str = Field(description="The title, or the first and last field if there is none.")
    id: list[int] | None = Field(description="The semantic ID; null if the model has no IDs.")
    fields: dict[str, Any] = Field(description="The fields and the other columns that were kept.")
    interactions: int = Field(description="How often training saw the item.")
    withdrawn: bool = Field(description="Whether it was withdrawn, and so is not recommended.")


class HistoryItem(BaseModel):
    """An item of the history, next to a recommended one."""

    item: str | int
    similarity: float | None = Field(description="The cosine of their vectors; null if the model has none.")
    shared_prefix: int | None = Field(description="Leading codes that their IDs share; null if the model has no IDs.")


class Why(BaseModel):
    """Why an item is recommended."""

    prefix: list[int] = Field(description="The longest prefix of its ID that an item of the history shares.")
    nearest: list[HistoryItem] = Field(description="The items of the history that are nearest to it, nearest first.")
    contributions: dict[str, float] = Field(
        description="What each score adds to the item's score, if the model blends several."
    )


class Recommendation(BaseModel):
    """A recommended item."""

    item: str | int
    score: float
    id: list[int] | None = Field(description="The semantic ID; null if the model has no IDs.")
    details: Item | None = Field(None, description="Only if the request asked for it.")
    why: Why | None = Field(None, description="Only if the request asked for it.")


class UserResult(BaseModel):
    """What is recommended to a user, best first."""

    items: list[Recommendation]
    skipped: int = Field(description="Items of the history that are not in the catalogue.")


class RecommendResponse(BaseModel):
    """Recommendations, one entry per user, in the order of the request."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {
                    "model": "mine",
                    "version": "9f86d081884c",
                    "results": [{"items": [{"item": "B038453D70", "score": -2.31, "id": [1, 0, 4]}], "skipped": 0}],
                }
            ]
        }
    )

    model: str
    version: str = Field(description="The beginning of the checksum of the model that answered.")
    results: list[UserResult]


class FoundItems(BaseModel):
    """Items that match a search, the most popular first."""

    total: int = Field(description="Of all matches, also those that are not listed.")
    items: list[Item]


class Similar(BaseModel):
    """An item that is similar to another one."""

    item: Item
    cosine: float = Field(description="Of the vectors of both items.")
    shared: int | None = Field(description="Leading codes that their IDs share; null if the model has no IDs.")


class SimilarItems(BaseModel):
    """The items that are most similar to one, nearest first."""

    item: str | int
    similar: list[Similar]


class Child(BaseModel):
    """A code that follows a prefix."""

    code: int
    total: int = Field(description="Items under it.")
    example: Item = Field(description="The most popular of them.")


class Branch(BaseModel):
    """What is under a prefix of semantic IDs."""

    prefix: list[int]
    levels: int = Field(description="Codes of a whole ID.")
    total: int = Field(description="Items under the prefix.")
    n_children: int = Field(description="Codes that follow the prefix, also those that are not listed.")
    children: list[Child]
    items: list[Item] = Field(description="The items of a whole ID.")


class ModelInfo(BaseModel):
    """A model that is being served."""

    name: str
    kind: str
    version: str
    loaded: datetime
    items: int
    fields: list[str]
    levels: list[int] | None = Field(description="The number of codes of every level; null without semantic IDs.")
    problem: str | None = Field(description="Why the content of its folder was refused, if it was.")


class Version(BaseModel):
    """The version of the library, the models, and the limits of requests."""

    resid: str
    models: list[ModelInfo]
    limits: dict[str, float]
    users: bool = Field(description="Whether requests can name users of a Dataset.")


class Health(BaseModel):
    """Whether the service can do its work."""

    status: Annotated[str, Field(examples=["ok"])]


class Reloaded(BaseModel):
    """What a reload did."""

    changed: dict[str, bool] = Field(description="Whether another model is served now, by name.")


class Problem(BaseModel):
    """What is wrong with a request, in one sentence."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"detail": "k must be at most 100, not 1,000."}]})

    detail: str
