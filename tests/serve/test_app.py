"""The routes: what they answer, and what they refuse. Answers are those of the model itself."""

import json
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from starlette.testclient import TestClient

from resid import Dataset, load
from resid.serve import ServeSettings, create_app
from resid.serve.holder import hold_models


def recommend(client, **request):
    return client.post("/recommend", json=request)


def assert_answers(answer, model, histories, **options):
    """The answer is what `Recommender.recommend` returns; scores may differ in the last digits with the batch."""
    assert answer.status_code == 200, answer.text
    items, scores = model.recommend(histories, **options)
    results = answer.json()["results"]
    assert [[entry["item"] for entry in result["items"]] for result in results] == [
        [item for item in row if item is not None] for row in items.tolist()
    ]
    for result, row in zip(results, scores, strict=True):
        np.testing.assert_allclose(
            [entry["score"] for entry in result["items"]], row[np.isfinite(row)], rtol=1e-4, atol=1e-5
        )


@pytest.fixture(scope="module")
def ids(model):
    return model.catalogue_.item_ids.to_list()


class TestRecommend:
    def test_like_the_model(self, client, model, ids):
        histories = [ids[:3], [], ids[5:9], [ids[7]]]
        answer = recommend(client, histories=histories, k=5)
        assert_answers(answer, model, histories, k=5)
        codes = dict(zip(ids, model.ids_.codes.tolist(), strict=True))
        for result in answer.json()["results"]:
            assert all(entry["id"] == codes[entry["item"]] for entry in result["items"])
            assert result["skipped"] == 0

    def test_options(self, client, model, ids):
        histories = [ids[:3], ids[5:9]]
        options = {"k": 4, "exclude_seen": True, "allow": ids[:20], "deny": ids[3:6]}
        assert_answers(recommend(client, histories=histories, **options), model, histories, **options)

    def test_where(self, client, model, ids):
        store = model.catalogue_.items["store"][0]
        for where in ({"store": store}, [f"store={store}"]):
            assert_answers(recommend(client, histories=[ids[:3]], where=where), model, [ids[:3]], where=where)
        for where in ({"color": "red"}, {"store": {"<": "x"}}, {"store": [[{}]]}, ["store"], {"store": None}):
            answer = recommend(client, histories=[ids[:3]], where=where)
            assert answer.status_code == 422, where

    def test_concurrent_requests_are_answered_like_single_ones(self, client, model, ids):
        """Requests with other options, and from other users, are not mixed up in a batch."""
        asked = [([ids[index : index + 1 + index % 7]], {"k": 3 + index % 3}) for index in range(48)]
        with ThreadPoolExecutor(16) as pool:
            answers = list(pool.map(lambda each: recommend(client, histories=each[0], **each[1]), asked))
        for answer, (histories, options) in zip(answers, asked, strict=True):
            assert_answers(answer, model, histories, **options)

    def test_unknown_items_are_counted(self, client, model, ids):
        answer = recommend(client, histories=[["never seen", ids[1]]])
        assert_answers(answer, model, [[ids[1]]])
        assert answer.json()["results"][0]["skipped"] == 1

    def test_users_of_the_dataset(self, client, app, model, models):
        data = Dataset.load(models / "data")
        users = data.user_ids[:2].to_list()
        assert_answers(recommend(client, users=users), model, [data.history(user).to_list() for user in users])
        assert "no user 'nobody'" in recommend(client, users=["nobody"]).json()["detail"]

    def test_another_model(self, client, holders, ids):
        answer = recommend(client, histories=[ids[:2]], model="popularity", details=True)
        assert_answers(answer, holders["popularity"].current.model, [ids[:2]])
        assert answer.json()["version"] == holders["popularity"].current.version
        first = answer.json()["results"][0]["items"][0]
        assert first["id"] is None
        assert first["details"] == client.get(f"/items/{first['item']}").json() | {"id": None}

    def test_no_users(self, client):
        assert recommend(client, histories=[]).json()["results"] == []


def deep(levels):
    return b"[" * levels + b"]" * levels


def test_why(client, model):
    history, other = model.catalogue_.item_ids[:3].to_list(), ["never seen"]
    answer = recommend(client, histories=[history, other], k=3, why=True).json()
    for asked, result in zip((history, other), answer["results"], strict=True):
        wanted = model.explain(asked, [entry["item"] for entry in result["items"]])
        for entry, expected in zip(result["items"], wanted, strict=True):
            why = entry["why"]
            assert why["prefix"] == list(expected.prefix)
            assert [near["item"] for near in why["nearest"]] == [near.item for near in expected.nearest]
            assert why["contributions"] == pytest.approx(expected.contributions, abs=1e-4)
    assert "why" not in recommend(client, histories=[history]).json()["results"][0]["items"][0]


class TestBadInput:
    @pytest.mark.parametrize(
        ("request_", "said"),
        [
            ({"histories": [["a"]], "k": 0}, "greater than or equal to 1"),
            ({"histories": [["a"]], "k": 10**9}, "k must be at most 100"),
            ({"histories": [["a"]], "k": 10**400}, "k must be at most 100"),
            ({"histories": [["a"]], "k": 99}, "the size of the catalogue"),
            ({"histories": [["a"]], "k": True}, "valid integer"),
            ({"histories": [["a"]], "k": "5"}, "valid integer"),
            ({"histories": [["a"]], "k": 1.5}, "valid integer"),
            ({"histories": "abc"}, "valid array"),
            ({"histories": ["abc"]}, "valid array"),
            ({"histories": [[None]]}, "valid string"),
            ({"histories": [[["a"]]]}, "valid string"),
            ({"histories": [["a"] * 1_001]}, "the length of a history must be at most 1,000"),
            ({"histories": [[]] * 257}, "the number of users must be at most 256"),
            ({"histories": [["a"]], "deny": ["a"] * 1_001}, "'allow' and 'deny' must be at most"),
            ({"histories": [["a"]], "allow": []}, "exclude every item"),
            ({"histories": [["a"]], "users": ["x", "y"]}, "one user id for each history"),
            ({"histories": [["a"]], "beams": 3}, "Extra inputs"),
            ({"histories": [["a"]], "why": 1}, "valid boolean"),
            ({"histories": [["a"]] * 17, "why": True}, "users with 'why' must be at most 16"),
            ({}, "must have 'histories' or 'users'"),
            ([], "object"),
        ],
    )
    def test_refused_with_a_sentence(self, client, request_, said):
        answer = client.post("/recommend", json=request_)
        assert answer.status_code == 422
        assert set(answer.json()) == {"detail"}
        assert said in answer.json()["detail"]

    @pytest.mark.parametrize(
        "body",
        [
            b"",
            b"{",
            b"\xff\xfe{}",
            b'{"histories": [[1' + b"0" * 5_000 + b"]]}",
            b'{"histories": [["\\ud800"]]}',
            b'{"histories": [["\\ud800"]], "\\ud800": 1}',
            b'{"histories": NaN}',
            b'{"histories": ' + deep(100_000) + b"}",
            deep(500_000),
        ],
    )
    def test_bodies_that_are_no_requests(self, client, body):
        answer = client.post("/recommend", content=body, headers={"content-type": "application/json"})
        assert answer.status_code in (400, 422)
        assert isinstance(answer.json()["detail"], str)

    def test_odd_ids_are_unknown(self, client):
        body = b'{"histories": [["\\u0000", "../../etc/passwd", -5, 99999999999999999999999]]}'
        answer = client.post("/recommend", content=body, headers={"content-type": "application/json"})
        assert answer.status_code == 200
        assert answer.json()["results"][0]["skipped"] == 4

    def test_large_bodies(self, client):
        history = json.dumps({"histories": [["B0"] * 10**6]}).encode()
        json_type = {"content-type": "application/json"}
        for content in (history, iter([history[:600_000], history[600_000:]])):  # with a length, and in chunks
            answer = client.post("/recommend", content=content, headers=json_type)
            assert (answer.status_code, answer.json()) == (
                413,
                {"detail": "the body must have at most 1,048,576 bytes."},
            )

    @pytest.mark.parametrize(
        "path",
        [
            "/items/never",
            "/items/..%2f..%2fetc%2fpasswd",
            "/items/%00",
            "/items/%ff%fe",
            "/items/x?model=none",
            "/page/..%2fapp.py",
            "/page/../app.py",
            "/page//etc/passwd",
            "/ids/x",
            "/ids/-1",
            "/ids/1.0",
            "/ids/0/0/0/0/0",
            "/ids/99999999",
            "/ids/9999999999",
            "/ids/0//0",
            "/ids/٣",
            "/ids/" + "9" * 5_000,
            "/docs",
            "/redoc",
            "/nothing",
        ],
    )
    def test_paths_that_do_not_exist(self, client, path):
        answer = client.get(path)
        assert answer.status_code == 404
        assert isinstance(answer.json()["detail"], str)

    def test_other_methods_and_types(self, client):
        assert client.get("/recommend").status_code == 405
        assert client.post("/recommend", content=b"histories=1").status_code == 422
        for query in ("limit=0", "limit=201", "offset=-1", "offset=1e9", f"search={'x' * 201}"):
            assert client.get(f"/items?{query}").status_code == 422

    def test_pages_of_other_sites(self, client):
        assert client.get("/version", headers={"host": "evil.example"}).status_code == 421
        assert client.get("/version", headers={"host": "[::1"}).status_code == 421
        assert client.post("/reload", headers={"origin": "http://evil.example"}).status_code == 403
        assert client.post("/reload", headers={"origin": "http://localhost"}).status_code == 200


class TestCatalogue:
    def test_item(self, client, model, ids):
        answer = client.get(f"/items/{ids[4]}").json()
        row = model.catalogue_.items.row(4, named=True)
        assert (answer["item"], answer["fields"]["title"]) == (ids[4], row["title"])
        assert answer["id"] == model.ids_.codes[4].tolist()
        assert answer["interactions"] == model.catalogue_.counts[4]

    def test_similar(self, client, model, ids):
        answer = client.get(f"/similar/{ids[4]}?k=5").json()
        items, cosines, shared = model.similar(ids[4], 5)
        assert answer["item"] == ids[4]
        assert [entry["item"]["item"] for entry in answer["similar"]] == items.tolist()
        assert [entry["shared"] for entry in answer["similar"]] == shared.tolist()
        np.testing.assert_allclose([entry["cosine"] for entry in answer["similar"]], cosines, rtol=1e-5)
        assert len(client.get(f"/similar/{ids[4]}?k=200").json()["similar"]) == len(ids) - 1
        assert client.get("/similar/never").status_code == 404

    def test_withdrawn_items(self, models, ids, tmp_path):
        model = load(models / "popularity")
        model.remove_items([ids[4]])
        model.save(tmp_path / "model")
        with TestClient(create_app(hold_models([tmp_path / "model"])), base_url="http://localhost") as client:
            assert client.get(f"/items/{ids[4]}").json()["withdrawn"]
            answer = recommend(client, histories=[[ids[4]]], k=len(ids))
            assert len(answer.json()["results"][0]["items"]) == len(ids) - 1

    def test_search(self, client, model, ids):
        everything = client.get("/items?limit=200").json()
        assert everything["total"] == len(everything["items"]) == len(ids)
        counts = [item["interactions"] for item in everything["items"]]
        assert counts == sorted(counts, reverse=True)
        rest = client.get("/items?limit=5&offset=3").json()["items"]
        assert rest == everything["items"][3:8]
        store = everything["items"][0]["fields"]["store"]
        found = client.get("/items", params={"search": f"{store.upper()} 日本語", "limit": 200}).json()["items"]

        def text(item):
            return " ".join([item["item"], *(value for value in item["fields"].values() if value)]).lower()

        words = [*store.lower().split(), "日本語"]
        assert found == [item for item in everything["items"] if all(word in text(item) for word in words)]
        assert 0 < len(found) < len(ids)
        assert client.get("/items", params={"search": ids[9]}).json()["items"][0]["item"] == ids[9]
        assert client.get("/items", params={"search": "(.*"}).json() == {"total": 0, "items": []}

    def test_branches_lead_to_every_item(self, client, model, ids):
        """Going down every branch finds every item once, under its own ID."""
        found, prefixes = {}, [""]
        while prefixes:
            branch = client.get(f"/ids{prefixes.pop()}?limit=200").json()
            assert branch["total"] == (sum(child["total"] for child in branch["children"]) or len(branch["items"]))
            assert branch["n_children"] == len(branch["children"])
            place = "".join(f"/{code}" for code in branch["prefix"])
            prefixes += [f"{place}/{child['code']}" for child in branch["children"]]
            for child in branch["children"]:
                assert child["example"]["id"][: len(branch["prefix"]) + 1] == [*branch["prefix"], child["code"]]
            found |= {item["item"]: branch["prefix"] for item in branch["items"]}
        assert found == dict(zip(ids, model.ids_.codes.tolist(), strict=True))

    def test_pages_of_a_branch(self, client):
        whole = client.get("/ids?limit=200").json()
        assert client.get("/ids?limit=1&offset=1").json()["children"] == whole["children"][1:2]

    def test_a_model_without_ids(self, client):
        assert client.get("/ids?model=popularity").status_code == 404


def test_version_health_and_metrics(client, holders, ids):
    version = client.get("/version").json()
    assert [info["name"] for info in version["models"]] == ["resid", "popularity"]
    assert version["models"][0]["version"] == holders["resid"].current.version
    assert version["limits"]["max_k"] == 100
    assert client.get("/health/live").json() == client.get("/health/ready").json() == {"status": "ok"}
    client.get("/items/private-item")
    text = client.get("/metrics").text
    assert 'resid_requests_total{route="/items/{item}",status="404"}' in text.replace(":path", "")
    assert "resid_batch_users_bucket" in text
    assert f'resid_model_items{{model="resid",version="{version["models"][0]["version"]}"}} {len(ids)}.0' in text
    assert "private-item" not in text


def test_headers(client):
    for path in ("/", "/version", "/nothing"):
        headers = client.get(path).headers
        assert "default-src 'none'" in headers["content-security-policy"]
        assert headers["x-content-type-options"] == "nosniff"


def test_a_failure_is_one_sentence_and_the_service_goes_on(holders, monkeypatch):
    model = holders["resid"].current.model
    monkeypatch.setattr(model, "top", lambda *_, **__: 1 / 0)
    with TestClient(create_app(holders), base_url="http://localhost", raise_server_exceptions=False) as client:
        history = [[model.catalogue_.item_ids[0]]]
        answer = recommend(client, histories=history)
        assert answer.status_code == 500
        assert "ZeroDivisionError" not in answer.text
        monkeypatch.undo()
        assert recommend(client, histories=history).status_code == 200


def test_too_slow(holders, monkeypatch):
    import threading

    go = threading.Event()
    model = holders["resid"].current.model
    top = model.top
    monkeypatch.setattr(model, "top", lambda *some, **more: go.wait(30) and top(*some, **more))
    settings = ServeSettings(timeout=0.2, max_queue=1)
    with TestClient(create_app(holders, settings), base_url="http://localhost") as client:
        history = [[model.catalogue_.item_ids[0]]]
        answer = recommend(client, histories=history)
        assert answer.status_code == 503
        assert answer.headers["retry-after"] == "1"
        assert "in time" in answer.json()["detail"]
        go.set()
        # The model is free again after the request that it was busy with.
        assert any(recommend(client, histories=history).status_code == 200 for _ in range(50))
