"""Records of the engine as dictionaries, and as the records of ``comity.results``."""

from typing import Any

from comity.results.schema import (
    METRICS,
    Best,
    Conflict,
    Cosines,
    Evaluation,
    Metrics,
    Result,
    RoundRecord,
    RuleNote,
    Seconds,
    Summary,
    Traffic,
    Transfer,
    Weights,
    plain,
)

_OWN = {"round", "cohort", "lost", "failed", "train/loss", "bytes", "seconds", "conflict", "rule", "weights", "cosines"}


def metrics_of(record: dict[str, Any]) -> Metrics:
    return {
        name: Summary(**{how: record[f"eval/{name}/{how}"] for how in ("mean", "std", "samples", "worst10")})
        for name in METRICS
        if f"eval/{name}/mean" in record
    }


def record_of(record: dict[str, Any]) -> RoundRecord:
    return RoundRecord(
        round=record["round"],
        cohort=record["cohort"],
        lost=record["lost"],
        failed={int(cid): why for cid, why in record.get("failed", {}).items()},
        train_loss=record["train/loss"],
        bytes=Traffic(**record["bytes"]),
        seconds=Seconds(**record["seconds"]),
        metrics=metrics_of(record),
        conflict=Conflict(**record["conflict"]) if "conflict" in record else None,
        rule=RuleNote(**record["rule"]) if "rule" in record else None,
        method={key: value for key, value in record.items() if key not in _OWN and not key.startswith("eval/")},
    )


def dictionary_of(record: RoundRecord) -> dict[str, Any]:
    entries: dict[str, Any] = plain(record)
    metrics, method = entries.pop("metrics"), entries.pop("method")
    entries["train/loss"] = entries.pop("train_loss")
    entries |= {f"eval/{name}/{how}": v for name, summary in metrics.items() for how, v in summary.items()}
    optional = ("failed", "conflict", "rule")
    entries = {key: value for key, value in entries.items() if value or key not in optional}
    return entries | dict(method)


def weights_of(record: dict[str, Any]) -> list[Weights]:
    return [Weights(round=record["round"], **entry) for entry in record.get("weights", ())]


def cosines_of(record: dict[str, Any]) -> list[Cosines]:
    return [Cosines(round=record["round"], **entry) for entry in record.get("cosines", ())]


def result_of(result: dict[str, Any]) -> Result:
    last, best, transfer = result["last"], result["best"], result.get("transfer")
    return Result(
        last=Evaluation(round=last["round"], metrics=metrics_of(last)),
        best=Best(
            round=best["round"],
            metrics=metrics_of(best),
            chosen_by="validation" if best["chosen by"] == "validation" else "test",
        ),
        transfer=transfer_of(transfer) if transfer else None,
        clients=result["clients"],
        malicious=result["malicious"],
        conflict_rate=result["conflict-rate"],
        worst_residual=result["worst residual"],
        bytes_per_round=Traffic(**result["bytes a round"]),
        seconds=Seconds(**result["seconds"]),
        failures=result["failures"],
        written=result["written"],
        versions=result["versions"],
        machine=result["machine"],
    )


def transfer_of(entries: dict[str, Any]) -> Transfer:
    return Transfer(
        local=entries["local"],
        relative_accuracy=entries["relative-accuracy"],
        positive_transfer=entries["positive-transfer"],
        harmed=entries["harmed"],
        gain={int(cid): gain for cid, gain in entries["gain"].items()},
    )
