"""What a registry answers, or doesn't, becomes an error of its own within seconds, without a credential in it."""

from __future__ import annotations

import base64
import contextlib
import json
import logging
import socket
import threading
import time
import traceback
from typing import TYPE_CHECKING, Any

import pytest

from dagster_kafka_flip import SchemaRegistry
from dagster_kafka_flip.errors import (
    SchemaNotFoundError,
    SchemaRegistryError,
    SchemaRegistryLoginError,
    SchemaRegistryUnreachableError,
)
from dagster_kafka_flip.formats.avro import AvroFormat
from dagster_kafka_flip.registry.registered_schema import UNKNOWN_ID, RegisteredSchema
from tests.registry.http_server import HOST, HttpServer, Request, http_server

if TYPE_CHECKING:
    from collections.abc import Iterator

    from dagster_kafka_flip.formats.frames import SchemaIdIn

SECRET = "hunter2-secret"
GUID = "123e4567-e89b-12d3-a456-426614174000"
_SOON_SECONDS = 10.0


@pytest.fixture(autouse=True)
def _soon() -> Iterator[None]:
    begun = time.monotonic()
    yield
    assert time.monotonic() - begun < _SOON_SECONDS


@pytest.fixture
def server() -> Iterator[HttpServer]:
    with http_server() as running:
        yield running


def ask(url: str, schema_id: int = 7, **fields: Any) -> RegisteredSchema:
    with SchemaRegistry(url=url, **fields).schemas() as schemas:
        return schemas.by_id(schema_id)


def refused(kind: type[SchemaRegistryError], url: str, **fields: Any) -> Any:
    with pytest.raises(SchemaRegistryError) as raised:
        ask(url, **fields)
    error = raised.value
    assert type(error) is kind
    assert SECRET not in "".join(traceback.format_exception(error))
    assert (error.__cause__, error.__context__) == (None, None)
    return error


def test_an_id_and_a_guid_are_asked_for_once_and_a_subject_each_time(server: HttpServer):
    server.says(200, {"schema": '"long"', "id": 7, "guid": GUID, "version": 3, "subject": "s"})
    with SchemaRegistry(url=server.url).schemas() as schemas:
        assert [schemas.by_id(7) for _ in range(3)] == [RegisteredSchema(7, "AVRO", '"long"')] * 3
        assert schemas.by_id(7, "s") == RegisteredSchema(7, "AVRO", '"long"', subject="s")
    # Another one, because the client keeps an answer's guid as well.
    with SchemaRegistry(url=server.url).schemas() as schemas:
        found = [schemas.by_guid(each) for each in (GUID, GUID.upper(), f"{{{GUID}}}")]
        assert found == [RegisteredSchema(UNKNOWN_ID, "AVRO", '"long"', guid=GUID)] * 3
        latest = RegisteredSchema(7, "AVRO", '"long"', guid=GUID, subject="s", version=3)
        assert [schemas.latest("s") for _ in range(2)] == [latest] * 2
    assert [request.path for request in server.requests] == [
        "/schemas/ids/7",
        "/schemas/ids/7?subject=s",
        f"/schemas/guids/{GUID}",
        "/subjects/s/versions/latest",
        "/subjects/s/versions/latest",
    ]


@pytest.mark.parametrize(
    ("where", "guid", "frame"),
    [("payload", GUID, "0000000007"), ("headers", GUID.upper(), f"01{GUID.replace('-', '').upper()}")]
    + [("headers", guid, "0000000007") for guid in (None, "no guid")],
)
def test_a_run_knows_its_subjects_latest_schema_as_records_name_it(
    server: HttpServer, where: SchemaIdIn, guid: str | None, frame: str
):
    server.says(200, {"schema": '"long"', "id": 7, "guid": guid, "version": 3, "subject": "orders-value"})
    form = AvroFormat(registry=SchemaRegistry(url=server.url), schema_id_in=where).bound(["orders"], is_key=False)
    form.renew()
    with contextlib.closing(form.book) as book:
        assert {digits: None if found is None else found.text for digits, found in book.known.items()} == {
            frame: '"long"'
        }
    assert [request.path for request in server.requests] == ["/subjects/orders-value/versions/latest"] * 2


@pytest.mark.parametrize("found_elsewhere", [False, True])
def test_ids_guids_and_references_are_those_of_the_subjects_context(server: HttpServer, found_elsewhere: bool):
    # As Confluent's registry: a context has ids and subjects of its own, and a reference is in its schema's context.
    def reply(request: Request) -> tuple[int, str]:
        in_context = "%3A.eu%3A" in request.path or (found_elsewhere and "orders-value" in request.path)
        name = "amount" if in_context else "fee"
        field = {"name": name, "type": "shop.Money"}
        answer = {
            "schema": json.dumps({"type": "record", "name": "Order", "fields": [field]}),
            "references": [{"name": "shop.Money", "subject": "money", "version": 1}],
            "id": 1,
            "version": 2,
            "subject": f"{':.eu:' if in_context else ''}orders-value",
        }
        if "money" in request.path:
            currency = {"name": "eur" if in_context else "usd", "type": "long"}
            answer |= {"schema": json.dumps({"type": "record", "name": "shop.Money", "fields": [currency]})}
            answer["references"] = []
        return 200, json.dumps(answer)

    server.reply = reply
    subject = "orders-value" if found_elsewhere else ":.eu:{topic}-value"
    registry = SchemaRegistry(url=server.url)
    form = AvroFormat(registry=registry, subject=subject).bound(["orders"], is_key=False)
    guid = f"01{GUID.replace('-', '').upper()}"
    with contextlib.closing(form.book) as book:
        book.learn({"0000000001": "", "0000000002": "", guid: ""})
        for digits in ("0000000001", "0000000002"):
            found = book.known[digits]
            assert found is not None
            assert "amount" in found.text
        for found in book.known.values():
            assert found is not None
            assert "eur" in found.references[0][1]
    assert [request.path for request in server.requests if "/ids/" in request.path] == [
        "/schemas/ids/2?subject=%3A.eu%3Aorders-value"
    ]
    # Without a context, all that is asked is as before.
    with registry.schemas() as schemas:
        assert "fee" in schemas.by_id(1).text
    assert server.requests[-2].path == "/schemas/ids/1"


def test_an_id_that_no_registry_gives_is_not_asked_for(server: HttpServer):
    with SchemaRegistry(url=server.url).schemas() as schemas:
        for schema_id in (-1, 0, 2**31):
            with pytest.raises(SchemaNotFoundError) as raised:
                schemas.by_id(schema_id)
            assert (raised.value.schema_id, raised.value.status) == (schema_id, None)
        with pytest.raises(SchemaNotFoundError) as raised:
            schemas.by_guid("../../subjects")
        assert raised.value.guid == "../../subjects"
    assert server.requests == []


@pytest.mark.parametrize(
    ("status", "body", "kind", "code"),
    [
        (404, {"error_code": 40403, "message": "Schema 7 not found"}, SchemaNotFoundError, 40403),
        (404, {"error_code": 40401, "message": "no such subject"}, SchemaNotFoundError, 40401),
        (404, {"error_code": 404, "message": "HTTP 404 Not Found"}, SchemaRegistryError, 404),
        (404, {"error_code": 0, "message": "no resource"}, SchemaRegistryError, None),
        (404, {"status": 404}, SchemaRegistryError, None),
        (404, f"<html>{SECRET}</html>", SchemaRegistryError, None),
        (401, {"error_code": 401, "message": "Unauthorized"}, SchemaRegistryLoginError, 401),
        (401, f"<html>{SECRET}</html>", SchemaRegistryLoginError, None),
        (403, {"error_code": 40301, "message": "denied"}, SchemaRegistryLoginError, 40301),
        (302, "", SchemaRegistryError, None),
        (400, {"error_code": "x", "message": 5}, SchemaRegistryError, None),
        (500, {"error_code": 50001, "message": "store"}, SchemaRegistryError, 50001),
        (503, "", SchemaRegistryError, None),
    ],
)
def test_a_status_becomes_an_error_of_its_own(
    server: HttpServer, status: int, body: Any, kind: type[SchemaRegistryError], code: int | None
):
    server.says(status, body)
    error = refused(kind, server.url, max_retries=0)
    assert (error.status, error.code) == (status, code)
    assert server.url in str(error)
    assert "id 7" in str(error)
    assert f"HTTP {status}" in str(error)


@pytest.mark.parametrize(
    "body",
    [
        f"<html>{SECRET}</html>",
        "",
        "[]",
        "7",
        "{}",
        {"schema": 7},
        {"schema": "x", "schemaType": "XML"},
        {"schema": "x", "references": [{"name": "a", "version": 1}]},
    ],
)
def test_answers_that_are_not_a_registrys_are_reported(server: HttpServer, body: Any):
    server.says(200, body)
    assert "not a schema registry" in str(refused(SchemaRegistryError, server.url))
    assert len(server.requests) == 1


def test_a_registry_that_knows_no_guids_has_none(server: HttpServer):
    server.says(404, {"error_code": 404, "message": "HTTP 404 Not Found"})
    with SchemaRegistry(url=server.url).schemas() as schemas, pytest.raises(SchemaNotFoundError):
        schemas.by_guid(GUID)


def guarded(expected: str) -> Any:
    """Answers who has the right header, and else quotes what was sent."""

    def reply(request: Request) -> tuple[int, str]:
        sent = request.headers.get("Authorization", "")
        if sent == expected:
            return 200, json.dumps({"schema": '"long"'})
        return 401, json.dumps({"error_code": 40101, "message": f"refused: {sent}"})

    return reply


def test_a_user_is_accepted_only_with_the_right_password(server: HttpServer, caplog: pytest.LogCaptureFixture):
    basic = base64.b64encode(f"ann:{SECRET}".encode()).decode()
    server.reply = guarded(f"Basic {basic}")
    with caplog.at_level(logging.DEBUG):
        assert ask(server.url, username="ann", password=SECRET).text == '"long"'
        assert ask(server.url.replace("//", f"//ann:{SECRET}@")).text == '"long"'
        server.reply = guarded("another")
        logins: list[dict[str, Any]] = [{"username": "ann", "password": SECRET}, {}]
        for fields in logins:
            error = refused(SchemaRegistryLoginError, server.url, **fields)
            assert (error.status, error.code) == (401, 40101)
            assert basic not in str(error)
            assert ("the user ann" in str(error)) == bool(fields)
    assert SECRET not in caplog.text
    assert basic not in caplog.text


def test_a_token_is_sent_with_what_confluent_cloud_asks_for(server: HttpServer, caplog: pytest.LogCaptureFixture):
    server.reply = guarded(f"Bearer {SECRET}")
    cloud: dict[str, Any] = {"logical_cluster": "lsrc-1", "identity_pool_id": "pool-1"}
    with caplog.at_level(logging.DEBUG):
        assert ask(server.url, bearer_token=SECRET, **cloud).text == '"long"'
        headers = server.requests[-1].headers
        assert (headers["target-sr-cluster"], headers["Confluent-Identity-Pool-Id"]) == ("lsrc-1", "pool-1")
        assert ask(server.url, bearer_token=SECRET).text == '"long"'
        server.reply = guarded("another")
        assert "the bearer_token" in str(refused(SchemaRegistryLoginError, server.url, bearer_token=SECRET))
    assert SECRET not in caplog.text


def test_an_oauth_client_gets_a_token_first(server: HttpServer, caplog: pytest.LogCaptureFixture):
    answer = guarded("Bearer short-lived")

    def reply(request: Request) -> tuple[int, str]:
        if request.path != "/token":
            return answer(request)
        if "scope=wrong" in request.body:
            return 400, json.dumps({"error": "invalid_scope", "error_description": f"not for {SECRET}"})
        return 200, json.dumps({"access_token": "short-lived", "token_type": "Bearer", "expires_in": 300})

    server.reply = reply
    oauth: dict[str, Any] = {
        "oauth_token_url": f"{server.url}/token",
        "oauth_client_id": "flip",
        "oauth_client_secret": SECRET,
    }
    with caplog.at_level(logging.DEBUG):
        assert ask(server.url, **oauth).text == '"long"'
        error = refused(SchemaRegistryLoginError, server.url, **oauth, oauth_scope="wrong")
        assert "invalid_scope" in str(error)
        answer = guarded("another")
        assert "the OAuth client flip" in str(refused(SchemaRegistryLoginError, server.url, **oauth))
        nowhere = f"http://{HOST}:{closed_port()}/token"
        error = refused(SchemaRegistryUnreachableError, server.url, **{**oauth, "oauth_token_url": nowhere})
        assert "oauth_token_url" in str(error)
    assert SECRET not in caplog.text


def closed_port() -> int:
    with socket.socket() as free:
        free.bind((HOST, 0))
        return free.getsockname()[1]


def test_an_address_without_a_listener_is_reported_within_seconds():
    url = f"http://{HOST}:{closed_port()}"
    error = refused(SchemaRegistryUnreachableError, url, username="ann", password=SECRET)
    assert (error.status, error.code) == (None, None)
    assert url in str(error)
    assert "4 tries" in str(error)


def test_who_never_answers_is_waited_for_one_timeout(server: HttpServer):
    silent = threading.Event()
    server.reply = lambda _: (200, str(silent.wait(_SOON_SECONDS)))
    begun = time.monotonic()
    error = refused(SchemaRegistryUnreachableError, server.url, request_timeout=1.0)
    silent.set()
    assert 1.0 <= time.monotonic() - begun < 5.0
    assert "within 1 s" in str(error)
    assert len(server.requests) == 1


@pytest.mark.parametrize(("status", "tries"), [(503, 3), (429, 3), (500, 3), (400, 1), (401, 1), (404, 1)])
def test_only_what_may_pass_is_asked_again(server: HttpServer, status: int, tries: int):
    server.says(status, {"error_code": status, "message": "x"})
    with pytest.raises(SchemaRegistryError):
        ask(server.url, max_retries=2)
    assert len(server.requests) == tries


def test_temporary_answers_are_retried(server: HttpServer):
    server.reply = lambda _: (503, "") if len(server.requests) < 3 else (200, json.dumps({"schema": '"long"'}))
    assert ask(server.url).text == '"long"'
    assert len(server.requests) == 3


def test_another_url_of_the_registry_is_used(server: HttpServer):
    server.says(200, {"schema": '"long"'})
    assert ask(f"http://{HOST}:{closed_port()},{server.url}").text == '"long"'
