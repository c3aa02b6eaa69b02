"""All that the locks need of comity's inside. When internals move, this file follows; the fixtures stay."""

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
from safetensors.torch import load_file
from torch import Tensor

import comity
from comity.compare import LoadedStudy, clients_csv
from comity.engine import Run
from comity.report._payload import payload
from comity.report._words import effects, notes
from comity.results.records import plain

DROPPED: frozenset[str] = frozenset({"rounds.step_cosines", "result.contributions", "payload.runs.contribution"})
"""Locked fields that no longer exist, as the failure names them (``result.contributions``). Issue 30 says which."""


def run(**options: Any) -> Run:
    """A run whose bits do not depend on the machine's compiler."""
    return comity.run(**options, trainer="autograd")


def theta(run: Run) -> Tensor:
    return run.server.theta


def server_states(run: Run) -> list[Tensor]:
    """What method, rule and server step keep at the server."""
    kept = [run.server.store, *run.server.rule_states.values(), *run.server.step_states.values()]
    return [tensor for state in kept for tensor in state.values()]


def method_states(run: Run) -> dict[int, dict[str, Tensor]]:
    """What the method has each client keep, by name."""
    return {cid: state.method for cid, state in run.server.link.states().items()}


def engine_states(run: Run) -> dict[int, list[Tensor]]:
    """What the engine has each client keep."""
    return {cid: list(state.engine.values()) for cid, state in run.server.link.states().items()}


def records(run: Run) -> list[dict[str, Any]]:
    """One for each round, as in rounds.jsonl; of failures and warnings who and how many, for their words may change."""
    found = [_exact(record) for record in run.records]
    return [each | {"failed": sorted(each["failed"]), "warnings": len(each["warnings"])} for each in found]


def details(run: Run) -> dict[str, list[dict[str, Any]]]:
    """As in weights.jsonl and cosines.jsonl."""
    return {"weights": list(map(_exact, run.weights)), "cosines": list(map(_exact, run.cosines))}


def result(run: Run) -> dict[str, Any]:
    """As in result.json."""
    return _exact(run.result)


def _exact(record: Any) -> dict[str, Any]:
    """As JSON has it, but NaN stays NaN."""
    return json.loads(json.dumps(msgspec.to_builtins(record, enc_hook=lambda array: array.tolist())))


# Studies.


def table(folder: Path) -> dict[str, str]:
    """The study's table in the two forms that are read elsewhere."""
    made = LoadedStudy(folder).table()
    return {"csv": made.csv(), "md": made.markdown()}


def page_payload(folder: Path) -> dict[str, Any]:
    """The JSON that the report's page is drawn from."""
    return json.loads(json.dumps(plain(payload(LoadedStudy(folder, thorough=True)))))


def study_answer(folder: Path) -> dict[str, Any]:
    """What the report says in words."""
    study = LoadedStudy(folder, thorough=True)
    verdict = study.verdict
    words = {"title": verdict.title, "evidence": verdict.evidence, "advice": verdict.advice}
    words |= {"effects": effects(study), "notes": notes(study, study.table())}
    return json.loads(json.dumps(words))


def client_rows(folder: Path) -> str:
    """One row per client and configuration, in full precision."""
    return clients_csv([cell.client_table for cell in LoadedStudy(folder).cells])


# Files.


def merge(base: Path | None, clients: Sequence[Path], output: Path, **options: Any) -> dict[str, Tensor]:
    """The merged tensors, which are written as safetensors."""
    output = output.with_suffix(".safetensors") if output.suffix else output
    comity.files.aggregate(base, clients, output, **options)
    weights = sorted(output.glob("*.safetensors")) if output.is_dir() else [output]
    return {name: tensor for file in weights for name, tensor in load_file(file).items()}


# Flower.

HEADER = ("comity-run", "comity-id", "comity-place")
"""Entries of a message that differ from run to run, or with the options that there are."""


def wire(options: Mapping[str, Any]) -> list[tuple[str, dict[str, list[bytes]]]]:
    """Every message and reply of a run on Flower: a name, and for each record the bytes that travel."""
    from flwr.app import ConfigRecord, Message, RecordDict
    from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects

    from comity.flower import client_app
    from comity.flower._server import over
    from in_process import InProcessGrid

    carried: list[tuple[str, dict[str, list[bytes]]]] = []

    def note(name: str, content: RecordDict) -> None:
        found: dict[str, list[bytes]] = {}
        for key, record in content.items():
            if isinstance(record, ConfigRecord):
                record = ConfigRecord({name: value for name, value in record.items() if name not in HEADER})
            found[str(key)] = sorted(part.deflate() for part in get_all_nested_objects(record).values())
        carried.append((name, found))

    class Recording(InProcessGrid):
        def answer(self, message: Message) -> Message:
            client = self.contexts[message.metadata.dst_node_id].node_config["partition-id"]
            name = f"{message.metadata.message_type} {client}"
            note(f"{name} asked", message.content)
            reply = super().answer(message)
            note(f"{name} replied", reply.content)
            return reply

    config = comity.Config(**options)
    nodes: Iterable[dict[str, Any]] = [{"secrets": "none"}] * (config.clients or 0)
    over(Recording(client_app(config), config.clients or 0, node_configs=list(nodes)), config)
    return carried
