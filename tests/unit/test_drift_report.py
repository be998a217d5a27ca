"""The report's shape, the exit status, what people see, and that no secret is in any of it."""

from __future__ import annotations

import io
import json
from typing import Any

import pytest
from pyinfra.api.command import FileUploadCommand, PyinfraCommand, StringCommand
from rich.console import Console

from gb10.drift import show
from gb10.drift.examine import _unknown
from gb10.drift.files import contents, targets, unified
from gb10.drift.mask import MASK, is_secret_name, known_secrets, masked
from gb10.drift.plan import Planned
from gb10.drift.report import Class, Deployed, HostReport, Ignored, Item, Report, exit_status, schema_text
from gb10.facts.probes import file_texts
from gb10.operations.placed import UPLOAD
from gb10.rendering import TOP

ITEM = Item(
    id="router: presets",
    stage="router",
    should="0644 0:0 aaaa",
    is_="0600 0:0 bbbb",
    made=Class.BOTH,
    fix="deploy",
    do="deploy (stage router)",
    commands=("chmod 0644 /etc/x",),
)
CLEAN = HostReport(host="a", state="clean")
DRIFT = HostReport(host="b", state="drift", items=(ITEM,))
UNKNOWN = HostReport(host="c", state="unknown", reason="Could not connect")


def report(*hosts: HostReport) -> Report:
    return Report(
        time="2026-11-29T21:00:00+00:00", revision="c0ffee", dirty=True, exit=exit_status(hosts), hosts=hosts
    )


@pytest.mark.parametrize(
    ("hosts", "status"),
    [
        ([CLEAN], 0),
        ([CLEAN, CLEAN], 0),
        ([DRIFT], 2),
        ([CLEAN, DRIFT], 2),
        ([UNKNOWN], 1),
        ([CLEAN, UNKNOWN], 1),
        ([DRIFT, UNKNOWN, CLEAN], 1),
        ([], 1),
        ([CLEAN.model_copy(update={"deploy": "failed"})], 1),
        ([CLEAN.model_copy(update={"deploy": "done"}), CLEAN], 0),
        ([DRIFT.model_copy(update={"deploy": "failed"})], 1),
    ],
)
def test_an_unknown_beats_drift_and_drift_beats_clean(hosts: list[HostReport], status: int) -> None:
    assert exit_status(hosts) == status


def test_the_json_is_what_its_schema_says() -> None:
    text = report(CLEAN, DRIFT, UNKNOWN).model_dump_json(by_alias=True)
    assert Report.model_validate_json(text) == report(CLEAN, DRIFT, UNKNOWN)
    raw = json.loads(text)
    assert raw["schema"] == 1
    assert raw["hosts"][1]["items"][0]["class"] == "both"
    assert raw["hosts"][1]["items"][0]["is"] == "0600 0:0 bbbb"
    _fits(raw, json.loads(schema_text()), json.loads(schema_text()))


def _fits(value: Any, schema: dict[str, Any], root: dict[str, Any]) -> None:
    """As much of JSON schema as the document uses."""
    if "$ref" in schema:
        return _fits(value, root["$defs"][schema["$ref"].rpartition("/")[2]], root)
    if "anyOf" in schema:
        fitting = []
        for one in schema["anyOf"]:
            try:
                _fits(value, one, root)
                fitting.append(one)
            except AssertionError:
                continue
        assert fitting, value
        return None
    kinds = {"object": dict, "array": list, "string": str, "boolean": bool, "null": type(None)}
    kind = schema.get("type")
    if kind in kinds:
        assert isinstance(value, kinds[kind]), (value, schema)
    if kind in ("integer", "number"):
        assert isinstance(value, int | float), (value, schema)
    if "enum" in schema:
        assert value in schema["enum"]
    if "const" in schema:
        assert value == schema["const"]
    if kind == "object":
        assert not set(schema.get("required", [])) - value.keys()
        if schema.get("additionalProperties") is False:
            assert not value.keys() - schema["properties"].keys()
        for name, inner in schema.get("properties", {}).items():
            if name in value:
                _fits(value[name], inner, root)
    if kind == "array":
        for entry in value:
            _fits(entry, schema["items"], root)
    return None


def test_the_documented_schema_is_the_reports_own() -> None:
    # Another shape needs another version: then write the file anew with
    # python -c "from gb10.drift.report import schema_text; print(schema_text(), end='')"
    assert (TOP / "docs/drift.schema.json").read_text() == schema_text()


def test_what_people_see() -> None:
    lines = list(show.lines(report(CLEAN, DRIFT, UNKNOWN)))
    assert lines == [
        "b: router: presets: should be 0644 0:0 aaaa, is 0600 0:0 bbbb (both)",
        "c: could not tell: Could not connect",
    ]
    assert "would run  chmod 0644 /etc/x" in show.explained(DRIFT, ITEM)
    assert show.headline(DRIFT) == "b: 1 difference, no deploy recorded"


def test_no_control_character_leaves_by_any_output() -> None:
    nasty = "x\x1b[1A\x1b[2K\x9b2K\ny"
    item = Item(
        id=f"lanes: {nasty}",
        stage="lanes",
        should=nasty,
        is_=nasty,
        made=Class.NEW,
        fix="hand",
        do=nasty,
        commands=(nasty,),
        diff=unified("/etc/x", nasty, "old\x1b[2K", []),
    )
    deployed = Deployed(time=nasty, by=nasty, revision=nasty, dirty=False)
    drifted = HostReport(
        host="a",
        state="drift",
        items=(item,),
        deployed=deployed,
        ignored=(Ignored(item=item, reason=nasty, owner=nasty, expires="2999-01-01"),),
    )
    away = HostReport(host="b", state="unknown", reason=nasty)
    out = io.StringIO()
    Console(file=out, width=400).print(show.table(report(drifted, away)))
    for said in (
        out.getvalue(),
        show.explained(drifted, item),
        *show.lines(report(drifted, away)),
        json.dumps(json.loads(report(drifted, away).model_dump_json()), ensure_ascii=False),
    ):
        assert not {"\x1b", "\x9b"} & set(said)
    assert "\n" not in show.headline(away)


@pytest.mark.parametrize("width", [80, 400])
def test_the_lines_of_a_diff_are_as_long_as_they_are(width: int) -> None:
    diff = unified("/etc/x", "a\n" + "b" * 200 + "\n", "a\nold\n", [])
    item = ITEM.model_copy(update={"diff": diff})
    out = io.StringIO()
    Console(file=out, width=width).print(show.table(report(DRIFT.model_copy(update={"items": (item,)}))))
    shown = out.getvalue().partition("--- /etc/x")
    if width == 400:
        assert "".join(shown[1:]) == diff
    assert "".join(shown[1:]).replace("\n", "") == diff.replace("\n", "")


def test_a_reason_is_plain_words() -> None:
    away = _unknown("a", "\x1b[31mno\x1b[0m \x1b[2Janswer\x07\nat all")
    assert away.reason == "no answer\\x07 at all"


# -- diffs ---------------------------------------------------------------------------------------------


def placing(path: str, content: str) -> tuple[PyinfraCommand, ...]:
    upload = f"{UPLOAD}{path.replace('/', '-')}"
    into_place = StringCommand("sh", "-c", "'set -e'", "-", upload, path, "0:0", "0644")
    return FileUploadCommand(io.BytesIO(content.encode()), upload), into_place


def test_each_file_of_an_operation_has_its_own_content() -> None:
    paths = ["/etc/a", "/etc/b", "/etc/c", "/etc/d"]
    only_mode = StringCommand("chmod", "0644", "/etc/c")
    one = Planned("watch: files", (*placing("/etc/a", "A\n"), only_mode, *placing("/etc/b", "B\n")))
    assert contents(one, paths) == {"/etc/a": "A\n", "/etc/b": "B\n"}
    assert targets(one, paths) == ["/etc/a", "/etc/c", "/etc/b"]


def test_a_candidate_that_is_only_tried_is_no_file_of_it() -> None:
    tried = placing("/var/lib/gb10/daemon.json.candidate", "tried")
    one = Planned("toolkit: daemon.json", (*tried, StringCommand("dockerd"), *placing("/etc/x", "new")))
    assert contents(one, ["/etc/x"]) == {"/etc/x": "new"}


# -- secrets ---------------------------------------------------------------------------------------

SECRET = "s3cr3t-Value_0123456789"


@pytest.mark.parametrize(
    "text",
    [
        f"HF_TOKEN={SECRET}",
        f'"OPENAI_API_KEY": "{SECRET}"',
        f"--env 'MY_SECRET={SECRET}'",
        f"--api-key {SECRET} --port 1",
        f"password: {SECRET}",
        f"Authorization: Bearer {SECRET}",
        f"https://user:{SECRET}@example.com/x",
        f"db_passwd = '{SECRET}'",
        f"DB_PASS={SECRET}",
        f"DBPASS={SECRET} next",
        f"MYSQL_PWD={SECRET}",
        f"x PASSWORD=abcd,{SECRET} y",
        f"x PASSWORD=abcd;{SECRET} y",
        f"{{token: {SECRET}, b: 2}}",
        f'Environment="A_PASSWORD=two {SECRET}" "B=1"',
        f"--env 'A_PASSWORD=two {SECRET}' --env B=1",
        f"--password '{SECRET} two' --port 1",
        f"--api-key={SECRET} --port 1",
        f'{{"a_token": "two {SECRET}", "b": 1}}',
        f'{{"a_token": "quoted \\" {SECRET}", "b": 1}}',
        f"+passphrase: correct {SECRET} staple",
        f"Authorization: Basic {SECRET}",
        f"curl -H 'Authorization: Basic {SECRET}' x",
        f'{{"authorization": "Token {SECRET}"}}',
        f"Authorization: {SECRET}",
        f'--header "X-Api-Key: {SECRET}"',
        f"Cookie: session={SECRET}",
        f"curl -u somebody:{SECRET} x",
        f"https://{SECRET}@example.com/x",
        f"https://example.com/x?key={SECRET}&a=1",
        f"https://example.com/x?access_token={SECRET}&a=1",
        f"ExecStartPost=curl https://hooks.slack.com/services/T0/{SECRET}",
        f"ExecStartPost=curl -d x https://discord.com/api/webhooks/1/{SECRET}",
        f"https://api.telegram.org/bot1:{SECRET}/sendMessage",
        f'{{"notify_command": [\n  "curl",\n  "https://example.com/{SECRET}"\n ]}}',
        f"WEBHOOK_URL=https://example.com/{SECRET}",
        f"-----BEGIN OPENSSH PRIVATE KEY-----\nabc\n{SECRET}\n-----END OPENSSH PRIVATE KEY-----",
    ],
)
def test_a_secret_by_its_name_or_place_is_masked(text: str) -> None:
    assert SECRET not in masked(text)
    assert MASK in masked(text)


@pytest.mark.parametrize("secret", ["hf_" + "a" * 34, "sk-" + "b" * 40, "ghp_" + "c" * 36])
def test_a_secret_by_its_looks_is_masked(secret: str) -> None:
    assert secret not in masked(f"see {secret} there")


@pytest.mark.parametrize(
    "text",
    [
        "--api-key-file /etc/llamacpp-playground/api-key",
        '"key_file": "/etc/llamacpp-playground/api-key"',
        "models_token_file = /root/token",
        "clients: {count: 4, tokens: 2000}",
        "router: API key",
        "chmod 0600 /etc/llamacpp-playground/api-key",
        "--api-key-file /k --port 10103",
        "docker run --user 10103:10103 x",
        "PWD=/root",
        "bypass = 1234",
        'toolkit_key_url = "https://example.com/gpgkey"',
        "watch_webhook_file: /etc/gb10/hook",
        "https://example.com/org/name/resolve/c0ffee/model.gguf",
        "tokens_per_second: 12.5",
    ],
)
def test_what_is_no_secret_stays(text: str) -> None:
    assert masked(text) == text


@pytest.mark.parametrize("word", ["a", "token", "-token", "http://a/", "eyJ-", '"token', "token "])
def test_a_text_without_end_is_no_trap(word: str) -> None:
    """What a box says may be long, and made to be. It must not take hours."""
    assert len(masked(word * 40_000)) > 10


def test_known_values_are_masked_wherever_they_are() -> None:
    known = known_secrets({"HF_TOKEN": SECRET, "THREADS": "1234"}, ["curl", "https://hooks.example/T0/xyz"])
    assert masked(f"look: {SECRET} and hooks.example/T0/xyz, 1234", known) == f"look: {MASK} and {MASK}, 1234"
    assert is_secret_name("HF_TOKEN")
    assert not is_secret_name("HF_TOKEN_FILE")


def test_a_diff_masks_both_sides() -> None:
    diff = unified("/etc/x", f"A_TOKEN={SECRET}\nb = 1\n", f"OTHER_KEY_SECRET={SECRET}\nb = 2\n", [])
    assert SECRET not in diff
    assert "-b = 2" in diff
    assert "+b = 1" in diff
    assert unified("/etc/x", "a\n", None, []).endswith("+a\n")


def test_the_boxs_own_secrets_do_not_leave_it(tmp_path: Any) -> None:
    (tmp_path / "key").write_text(f"{SECRET}\n")
    (tmp_path / "unit").write_text(f"ExecStart=x --header {SECRET}\n")
    question = {"paths": [str(tmp_path / "unit"), str(tmp_path / "none")], "secrets": [str(tmp_path / "key")]}
    texts = file_texts.main(question)["texts"]
    assert texts == {str(tmp_path / "unit"): f"ExecStart=x --header {MASK}\n", str(tmp_path / "none"): None}
