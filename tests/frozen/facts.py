"""Recorded facts, each as JSON: what other machines, people's files and people's habits rest on.

Classes are found by name (``product``), so that moving one changes nothing here but an import. What a newer version of
FastAPI, Pydantic or Typer words otherwise on its own is left out where it is known.
"""

from __future__ import annotations

import hashlib
import importlib
import inspect
import json
from collections.abc import Callable, Iterator
from enum import Enum
from pathlib import Path
from typing import Any, Final, Literal, get_args, get_origin, get_type_hints

import sqlalchemy
import typer
from fastapi import FastAPI
from pydantic import BaseModel
from pydantic_core import to_json
from pydantic_settings import BaseSettings

import moiety
from client_agent.learning.study_file import StudyTable
from client_agent.site.events import RoundRecord
from harness.engine.parties import OPERATOR_NAMES, SiteEntry, make_parties
from harness.simulate import case, study_files
from harness.simulate.run_line import RunLine
from protocol import errors
from protocol.channel import envelope, sealing, session, signing
from protocol.channel.keys import SigningKey
from protocol.messages import paths
from protocol.messages.control import RuleName, RuleSpec
from protocol.messages.letter import LetterKind
from protocol.roster.keyfile import dump_party_keys, dump_roster
from protocol.rules.registry import OPTIONS, rule_for
from protocol.sharing import Side
from servers.app import create_app, create_operations
from servers.problems import PROBLEMS
from servers.settings import ServerSettings
from servers.store.migrate import upgrade
from tests.frozen.decisions import decisions
from tests.frozen.examples import EXAMPLES, SIGNED_KIND
from tests.frozen.product import classes, messages

Json = Any
WORDS: Final = ("description", "title")


def all_facts(folder: Path) -> dict[str, Json]:
    """Every fact by its name; ``folder`` is an empty one for what an application needs on disk."""
    makers: dict[str, Callable[[], Json]] = {
        "messages": message_bytes,
        "message_fields": message_fields,
        "wire": wire,
        "errors": error_codes,
        "http_public": lambda: _http(_apps(folder)[0]),
        "http_operations": lambda: _http(_apps(folder)[1]),
        "database": lambda: database(folder),
        "settings": settings,
        "commands": commands,
        "decisions": decisions,
        "rules": rules,
        "studies": studies,
        "lines": lines,
    }
    return {name: make() for name, make in makers.items()}


# --- messages ---------------------------------------------------------------------------------------------------------


def message_bytes() -> Json:
    """Kind -> canonical bytes, which are text, and digest of the example."""
    made = {}
    by_kind = {kind.KIND: kind for kind in messages()}
    for kind in (by_kind[name] for name in EXAMPLES if name in by_kind):
        form: Any = kind
        if kind.KIND == "signed":
            form = form[by_kind[SIGNED_KIND]]
        message = form.parse(json.dumps(EXAMPLES[kind.KIND]).encode())
        made[kind.KIND] = {"canonical": message.canonical().decode("ascii"), "digest": message.digest()}
    return made


def message_fields() -> Json:
    """Kind -> what each field may be; a message inside another one stands there by its kind."""
    return {kind.KIND: fields_of(kind) for kind in messages()}


def fields_of(kind: type[BaseModel]) -> Json:
    """Types, bounds and defaults of a model's fields, enums and tables written out, without words for people."""
    schema = kind.model_json_schema(by_alias=True)
    kinds = {message.__name__: message.KIND for message in messages()}
    definitions = schema.get("$defs", {})

    def plain(part: Json) -> Json:
        if isinstance(part, list):
            return [plain(one) for one in part]
        if not isinstance(part, dict):
            return part
        if "$ref" in part:
            name = part["$ref"].removeprefix("#/$defs/")
            rest = {key: plain(value) for key, value in part.items() if key not in ("$ref", *WORDS)}
            return {**_referred(name, definitions[name]), **rest}
        fields = {key: plain(value) for key, value in part.get("properties", {}).items()}
        others = {key: plain(value) for key, value in part.items() if key not in ("properties", "required", *WORDS)}
        if "required" in part:
            others["required"] = sorted(part["required"])
        return {**others, "properties": fields} if fields else others

    def _referred(name: str, definition: Json) -> Json:
        if name in kinds:
            return {"message": kinds[name]}
        if definition.get("title", "").startswith("Signed["):
            return {"signed": kinds[definition["title"].removeprefix("Signed[").removesuffix("]")]}
        return plain(definition)

    return plain({key: value for key, value in schema.items() if key != "$defs"})


# --- what travels around them -----------------------------------------------------------------------------------------


def wire() -> Json:
    """Addresses, header names, media types, topics of letters, paddings, and the headers of a signed exchange."""
    key = SigningKey.from_bytes(bytes(range(32)))
    url = "https://a.example:8441" + paths.SEALED
    asked = {
        field.value: signing.sign_request(
            "POST", url, bytes(32), key, "ab" * 16, created=1_700_000_000, nonce="n" * 22, digest_field=field
        )
        for field in signing.DigestField
    }
    answered = signing.sign_answer(
        200,
        envelope.ANSWER_TYPE,
        bytes(32),
        key,
        "ab" * 16,
        created=1_700_000_000,
        request_signature=dict(asked["content-digest"])["Signature"],
    )
    return {
        "paths": {name: value for name, value in vars(paths).items() if name[0].isupper() and name.isupper()},
        "signed_request": asked,
        "signed_answer": answered,
        "label": signing.LABEL,
        "tag": signing.TAG,
        "seconds": {"age": signing.MAX_AGE_S, "skew": signing.MAX_SKEW_S},
        "media_types": [envelope.ANSWER_TYPE, envelope.SEALED_TYPE, session.SESSION_TYPE],
        "sealed_magic": sealing.MAGIC.hex(),
        "in_a_session": _in_a_session(),
        "envelope_head_bytes": envelope.HEAD_BYTES,
        "envelope_padding": {str(n): envelope.padded_length(n) for n in (0, 1, 512, 513, 5000, 65536, 65537, 10**6)},
        "sealed_bytes": {str(n): sealing.sealed_length(n) for n in (0, 1, 2**16, 2**20, 2**20 + 1)},
        "letters": [member.value for member in LetterKind],
    }


def _in_a_session() -> Json:
    """One request and its answer, whose keys follow from both secrets."""
    bound = {"session": b"n" * 16, "caller": "a" * 32, "server": "b" * 32, "offer_digest": "d" * 64}
    keys = session.session_keys(b"o" * 32, b"g" * 32, **bound)  # type: ignore[arg-type]
    asked = envelope.EnclosedRequest(
        method="GET",
        target=paths.STUDIES,
        body_digest=hashlib.sha256().hexdigest(),
        digest_field=signing.DigestField.CONTENT,
        enclosed_bytes=0,
        body_bytes=0,
    )
    request = session.close_request(keys, b"n" * 16, 7, 1_700_000_000, asked, b"")
    head = session.read_head(request[: session.HEAD_BYTES])
    return [request.hex(), session.close_answer(keys, head, session.SessionAnswer(200, b"{}")).hex()]


def error_codes() -> Json:
    """Code -> the class that is raised, its parent, the status and title that a caller gets."""
    kinds = {kind.__name__: kind for kind in classes(errors.MoietyError, "(Unavailable")}
    tree = {name: [kind.__bases__[0].__name__, kind.__dict__.get("code")] for name, kind in sorted(kinds.items())}
    table = {code.value: [problem.status, problem.title] for code, problem in PROBLEMS.items()}
    return {"raised": tree, "answered": table, "codes": [code.value for code in errors.ErrorCode]}


# --- HTTP and the database --------------------------------------------------------------------------------------------


def _apps(folder: Path) -> tuple[FastAPI, FastAPI]:
    """Side A of a federation of four sites; nothing listens."""
    sites = [SiteEntry(f"clinic-{n}", 100) for n in range(4)]
    urls = {Side.A: "https://a.example:8441", Side.B: "https://b.example:8442"}
    parties = make_parties("clinics", "clinic-0", sites, bytes(32), urls)
    own = next(keys for keys in parties.keys if keys.name == OPERATOR_NAMES[Side.A])
    place = folder / "server"
    place.mkdir(exist_ok=True)
    for name, text in (("roster.toml", dump_roster(parties.roster)), ("keys.toml", dump_party_keys(own))):
        (place / name).touch(0o600)
        (place / name).write_text(text, encoding="utf-8")
    found: dict[str, Any] = {name: place / f"{name}.toml" for name in ("roster", "keys")}
    unused: dict[str, Any] = {name: place / name for name in ("data_dir", "tls_certificate", "tls_key")}
    told = ServerSettings(side=Side.A, port=8441, public_url=urls[Side.A], peer_url=urls[Side.B], **found, **unused)
    upgrade_to = place / "data_dir"
    upgrade_to.mkdir(exist_ok=True)
    upgrade(told.database)
    public = create_app(told)
    public.state.server.ckks.close()
    public.state.server.store.close()
    return public, create_operations(public)


def _http(app: FastAPI) -> Json:
    """The description of the interface, without the two answers that FastAPI itself describes."""
    described = FastAPI.openapi(app)  # what serves the description describes another application
    described.pop("openapi")
    schemas = described.get("components", {}).get("schemas", {})
    for own in ("HTTPValidationError", "ValidationError"):
        schemas.pop(own, None)
    return described


def database(folder: Path) -> Json:
    """Table -> columns, keys and indexes, as the migrations leave them in SQLite."""
    url = f"sqlite:///{folder / 'schema.db'}"
    upgrade(url)
    engine = sqlalchemy.create_engine(url)
    seen = sqlalchemy.inspect(engine)
    tables = {name: _table(seen, name) for name in sorted(seen.get_table_names())}
    with engine.connect() as connection:
        version = connection.exec_driver_sql("select version_num from alembic_version").scalar_one()
    engine.dispose()
    return {"version": version, "tables": tables}


def _table(seen: Any, name: str) -> Json:
    columns = {
        column["name"]: [str(column["type"]), "null" if column["nullable"] else "not null", column["default"]]
        for column in seen.get_columns(name)
    }
    return {
        "columns": columns,
        "primary_key": seen.get_pk_constraint(name)["constrained_columns"],
        "foreign_keys": sorted(
            [key["constrained_columns"], key["referred_table"], key["referred_columns"]]
            for key in seen.get_foreign_keys(name)
        ),
        "unique": sorted([one["name"] or "", one["column_names"]] for one in seen.get_unique_constraints(name)),
        "indexes": sorted([one["name"], one["column_names"], bool(one["unique"])] for one in seen.get_indexes(name)),
    }


# --- what people write and type ---------------------------------------------------------------------------------------


def settings() -> Json:
    """Settings class -> its variables' prefix and every key with type, bounds and default, tables written out."""
    return {
        kind.__name__: {
            "environment": [kind.model_config["env_prefix"], kind.model_config["env_nested_delimiter"]],
            **fields_of(kind),
        }
        for kind in classes(BaseSettings, "BaseSettings")
    }


def commands() -> Json:
    """Subcommand -> the tree of its commands, each with its options: names, types, defaults, help.

    Read from the functions, since what Typer makes of them changes with its version.
    """
    return {name: _subcommand(command) for name, command in moiety.SUBCOMMANDS.items()}


def _subcommand(command: moiety.Subcommand) -> Json:
    target = getattr(importlib.import_module(command.module), command.attribute)
    return {"help": command.help, **(_group(target) if command.group else {"options": _options(target)})}


def _group(app: typer.Typer) -> Json:
    below = {one.name or _dashed(one.callback): _options(one.callback) for one in app.registered_commands}
    groups = {one.name: _group(one.typer_instance) for one in app.registered_groups if one.typer_instance}
    before = app.registered_callback
    return {"commands": {**below, **groups}, "before": _options(before.callback) if before else {}}


def _dashed(function: Any) -> str:
    return str(function.__name__).replace("_", "-")


def _options(function: Any) -> Json:
    hints = get_type_hints(function, include_extras=True)
    asked = inspect.signature(function).parameters.values()
    return {one.name: _option(hints[one.name], one.default) for one in asked if hints[one.name] is not typer.Context}


def _option(hint: Any, default: Any) -> Json:
    kind, told = get_args(hint)
    names = [one for one in (told.default, *(told.param_decls or ())) if isinstance(one, str)]  # as Typer reads them
    about = {name: getattr(told, name) for name in ("help", "envvar", "min", "max", "metavar", "hidden")}
    fact = {name: value for name, value in about.items() if value}
    if default is not inspect.Parameter.empty:
        fact["default"] = json.loads(to_json(default))
    return {"is": type(told).__name__, "names": names, "type": _type(kind), **fact}


def _type(kind: Any) -> Json:
    if isinstance(kind, type) and issubclass(kind, Enum):
        return [member.value for member in kind]
    if get_origin(kind) is Literal:
        return list(get_args(kind))
    inner = [_type(one) for one in get_args(kind)]
    return {str(get_origin(kind).__name__): inner} if inner else str(kind.__name__)


def rules() -> Json:
    """Rule -> the options it takes, and what it asks of servers and sites."""
    made = {}
    for name in RuleName:
        rule = rule_for(RuleSpec(name=name), batch_size=16, grid=32)
        made[name.value] = {
            "options": list(OPTIONS[name]),
            "opens": rule.needs.value,
            "weights_never_rise": rule.weights_never_rise,
            "selects": rule.selects,
            "self_weighted": name.self_weighted,
            "counts_classes": name.counts_classes,
            "only_averages": name.only_averages,
        }
    return made


def studies() -> Json:
    """The keys of study files, and every study that comes along: variant -> digest of all that decides its results."""
    tables: dict[str, type[BaseModel]] = {
        "study": StudyTable,
        "[case]": case.CaseTable,
        "[[variant]] of a case": case.VariantTable,
    }
    return {"keys": {name: fields_of(table) for name, table in tables.items()}, "studies": dict(_studies())}


def lines() -> Json:
    """File -> the fields of its lines, and of what stands in them, in the order in which they are written."""
    kinds: dict[str, type[BaseModel]] = {"metrics.jsonl": RoundRecord, "results.jsonl": RunLine}
    return {file: _written(kind) for file, kind in kinds.items()}


def _written(kind: type[BaseModel]) -> Json:
    schema = kind.model_json_schema(mode="serialization")
    inside = {name: list(part["properties"]) for name, part in schema["$defs"].items() if "properties" in part}
    return {"line": list(schema["properties"]), **inside}


def _studies() -> Iterator[tuple[str, Json]]:
    for file in map(study_files.read_study_file, map(Path, study_files.study_names())):
        simulated = case.case_of(file)
        yield simulated.name, {one.name: one.digest for one in simulated.variants}
