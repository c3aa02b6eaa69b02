"""Standardisation of tables that stay at their sites: one question for sums before the first round."""

import logging
from collections.abc import Mapping
from dataclasses import field
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from comity._errors import ComityError
from comity.data import ClientData, Federation, Moments, Scaler, Schema
from comity.engine import Call, ClientState, Extension, Verb
from comity.methods import Payload, Question

if TYPE_CHECKING:
    from comity.engine import Run, RunPlan, Server, Site

log = logging.getLogger("comity")

SCALER = "scaler"
"""Key in the server's store, (2, features) float64."""


class Features(Question):
    """A question for sums over a client's training and validation samples."""

    features: int


class Sums(Payload):
    """The sums of `Moments`, (4, features): number, sum, sum of squares, and number of values other than 0 and 1."""

    bits: Tensor
    """Float64 as int64: floats in messages must be within the range of float32, which squares may exceed."""

    @classmethod
    def over(cls, moments: Moments) -> "Sums":
        return cls(bits=torch.from_numpy(moments.stacked).view(torch.int64))

    @property
    def moments(self) -> Moments:
        return Moments(*self.bits.view(torch.float64).numpy())


class Scaling(Extension):
    """Ask each client once for its sums, and send means and standard deviations with all later questions.

    The links of a run and of its local baselines send the same values: there is one question for all of them.
    """

    scaled: bool = field(default=False, init=False)
    """Whether the samples at this site are scaled."""

    def attach(self, plan: "RunPlan", site: "Site") -> None:
        if plan.config.dp_noise:
            raise ComityError(
                "dp_noise covers updates, but the sums for means and spreads of tables would leave their sites without "
                "noise; leave dp_noise out, or run it with data that the sites have scaled themselves (OwnData)"
            )
        prepare = site.federation.preprocessing
        self.scaled = prepare is not None and prepare.scaler is not None

    def verbs(self, verbs: dict[str, Verb]) -> dict[str, Verb]:
        return verbs | {"moments": Verb("moments", Features, Sums, _moments, _objection, summed="bits")}

    def client_data(self, data: ClientData, round: int) -> ClientData:
        if not self.scaled:
            raise ComityError("the request has no means and standard deviations")
        return data

    def before_training(self, run: "Run") -> None:
        server = run.server
        along = server.link.along
        if SCALER in server.store:  # already asked, before the run was resumed
            along[:] = server.store[SCALER].flatten().tolist()
        asked = not along
        if asked:
            schema = _schema_of(run.federation)
            if run.config.masked and not schema.min_count:
                raise ComityError("masked, the schema must say of how many values a sum is at least: `min_count: 10`")
            question = Features(features=run.federation.shape[0])
            replies = server.ask_clients("moments", dict.fromkeys(server.clients, question))
            if not replies:
                raise ComityError(f"no client sent its sums for means and spreads: {server.first_failure}")
            scaler = Scaler.of(_total(server, question, replies, schema))
            along[:] = [*scaler.centre.tolist(), *scaler.factor.tolist()]
        server.store[SCALER] = torch.tensor(along, dtype=torch.float64).view(2, -1)
        if asked:
            run.save()  # after a resume other clients may answer, but the local baselines were scaled by these


def _total(server: "Server", question: Features, replies: Mapping[int, Any], schema: Schema) -> Moments:
    """The sums over all clients, or the total from an extension that hides single clients' sums."""
    about = question, replies, 4, schema.features
    hidden = (each.total(server, "moments", *about) for each in server.extensions)
    total = next((sums for sums in hidden if sums is not None), None)
    if total is None:
        return Moments.together((reply.moments for reply in replies.values()), schema)
    whole = Moments(*total.numpy())
    if (why := _objection(question, Sums.over(whole))) is not None:
        raise ComityError(f"the sums of all clients cannot be used: one of them {why}")
    return whole


def _moments(call: Call) -> tuple[Payload, ClientState | None]:
    """Sums of this client's samples. The client is not started, and its state stays unchanged."""
    federation = call.site.federation
    schema, found = _schema_of(federation), Moments.of(federation.clients[call.cid].train.x.numpy())
    known = zip(schema.features, found.count, strict=True)
    if few := [name for name, count in known if 0 < count < schema.min_count]:
        log.warning("fewer than %d known values: this site sends no sums of %s", schema.min_count, ", ".join(few))
    return Sums.over(found.without_few(schema.min_count)), call.state


def _schema_of(federation: Federation) -> Schema:
    prepare = federation.preprocessing
    if prepare is None or prepare.schema is None or prepare.scaler is not None:
        raise ComityError("sums are asked for once, and of tables that are not scaled yet")
    return prepare.schema


def _objection(sent: Payload, reply: Payload) -> str | None:
    assert isinstance(sent, Features)
    assert isinstance(reply, Sums)
    if reply.bits.shape != (4, sent.features) or reply.bits.dtype != torch.int64:
        return "sent sums of another shape or type than the schema's features"
    return reply.moments.objection()
