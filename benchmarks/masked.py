"""What a masked sum costs beside Flower's SecAgg+: the same mean, both without transport, in one process.

python benchmarks/masked.py            # milliseconds a client and of the server, clients × numbers

SecAgg+ is driven by the functions of its own stages; unmasking is done as its workflow does it.
"""

import time
from collections.abc import Callable
from importlib import import_module
from statistics import median
from typing import Any

import numpy as np
from flwr.app import ConfigRecord
from flwr.common import bytes_to_ndarray, ndarrays_to_parameters
from flwr.common.secure_aggregation.crypto.shamir import combine_shares
from flwr.common.secure_aggregation.ndarrays_arithmetic import factor_extract, parameters_mod, parameters_subtraction
from flwr.common.secure_aggregation.quantization import dequantize
from flwr.common.secure_aggregation.secaggplus_constants import Key
from flwr.common.secure_aggregation.secaggplus_utils import pseudo_rand_gen

from comity.privacy import Collector, FixedPoint, Party, place_of, rehearsed
from comity.privacy._keys import is_signed
from round import header

stages = import_module("flwr.client.mod.secure_aggregation.secaggplus_mod")  # a function of that name hides it

CASES = (10, 100_000), (10, 1_000_000), (30, 100_000)
REPEATS = 3
CLIP, TARGET, MODULUS, WEIGHT = 8.0, 2**22, 2**32, 1000
"""SecAgg+'s defaults."""

Matrix = np.ndarray[Any, np.dtype[Any]]


class Spent:
    """Seconds of CPU time of all clients together and of the server, and what came out."""

    def __init__(self, way: Callable[["Spent", Matrix], Matrix], updates: Matrix) -> None:
        self.clients = self.servers = 0.0
        self.mean = way(self, updates)

    def client(self, work: Callable[..., Any], *args: Any) -> Any:
        start = time.process_time()
        result = work(*args)
        self.clients += time.process_time() - start
        return result

    def server(self, work: Callable[..., Any], *args: Any) -> Any:
        start = time.process_time()
        result = work(*args)
        self.servers += time.process_time() - start
        return result


def comity(spent: Spent, updates: Matrix) -> Matrix:
    count, place, point = len(updates), place_of("benchmark", 1), FixedPoint(len(updates))
    parties = [Party(secrets, place, {}) for secrets in rehearsed(0, count)]
    keys = {party.me: spent.client(party.announce) for party in parties}
    collector = spent.server(Collector, place, keys)

    def alone(work: Callable[..., Any], *args: Any) -> Any:
        """As at a site of its own, which has checked nobody's signature yet."""
        is_signed.cache_clear()
        return spent.client(work, *args)

    spent.server(collector.receive, {party.me: alone(party.share, keys) for party in parties})
    masked = {}
    for party in parties:
        spent.client(party.receive, spent.server(collector.sealed_for, party.me))
        words = spent.client(lambda cid=party.me: point.encode(updates[cid].astype(np.float64) / count))
        masked[party.me] = spent.client(party.mask, 0, words, range(count), b"weights")
    signed = {party.me: spent.client(party.agree, 0, range(count)) for party in parties}
    told = {party.me: alone(party.unmask, 0, signed) for party in parties}
    return spent.server(lambda: point.decode(collector.open(0, range(count), b"weights", masked, told)))


def secaggplus(spent: Spent, updates: Matrix) -> Matrix:
    count = len(updates)
    states = {cid: stages.SecAggPlusState(nid=cid) for cid in range(count)}
    setup = {Key.SAMPLE_NUMBER: count, Key.SHARE_NUMBER: count, Key.THRESHOLD: -(-2 * count // 3)}
    setup |= {Key.CLIPPING_RANGE: CLIP, Key.TARGET_RANGE: TARGET, Key.MOD_RANGE: MODULUS, Key.MAX_WEIGHT: float(WEIGHT)}
    keys = {}
    for cid, state in states.items():
        told = spent.client(stages._setup, state, ConfigRecord(setup))
        keys[str(cid)] = [told[Key.PUBLIC_KEY_1], told[Key.PUBLIC_KEY_2]]
    sealed: dict[int, list[tuple[int, bytes]]] = {cid: [] for cid in states}
    for cid, state in states.items():
        told = spent.client(stages._share_keys, state, ConfigRecord(keys))
        for to, text in zip(told[Key.DESTINATION_LIST], told[Key.CIPHERTEXT_LIST], strict=True):
            sealed[to].append((cid, text))
    masked = []
    for cid, state in states.items():
        given = {
            Key.SOURCE_LIST: [who for who, _ in sealed[cid]],
            Key.CIPHERTEXT_LIST: [text for _, text in sealed[cid]],
        }
        parameters = ndarrays_to_parameters([updates[cid]])
        told = spent.client(stages._collect_masked_vectors, state, ConfigRecord(given), WEIGHT, parameters)
        masked.append([bytes_to_ndarray(each) for each in told[Key.MASKED_PARAMETERS]])
    everybody = ConfigRecord({Key.ACTIVE_NODE_ID_LIST: list(states), Key.DEAD_NODE_ID_LIST: []})
    shares: dict[int, list[bytes]] = {cid: [] for cid in states}
    for state in states.values():
        told = spent.client(stages._unmask, state, everybody)
        for owner, share in zip(told[Key.NODE_ID_LIST], told[Key.SHARE_LIST], strict=True):
            shares[owner].append(share)

    def opened() -> Matrix:
        total = [sum(parts) for parts in zip(*masked, strict=True)]
        for owner in shares:
            mask = pseudo_rand_gen(combine_shares(shares[owner]), MODULUS, [each.shape for each in total])
            total = parameters_subtraction(total, mask)
        weight, total = factor_extract(parameters_mod(total, MODULUS))
        (mean,) = dequantize(total, CLIP, TARGET)
        return (mean - (count - 1) * CLIP) * TARGET / weight

    return spent.server(opened)


def main() -> None:
    numbers = [f"{name}: {each}" for name in ("comity", "SecAgg+") for each in ("a client", "server", "largest error")]
    print(header("clients × numbers", numbers=numbers))
    for count, size in CASES:
        updates = np.random.default_rng(0).normal(0, 0.01, (count, size)).astype(np.float32)
        runs: dict[str, list[Spent]] = {"comity": [], "SecAgg+": []}
        for _ in range(REPEATS):
            for name, way in zip(runs, (comity, secaggplus), strict=True):
                runs[name].append(Spent(way, updates))
        row = [f"{count} × {size:,}"]
        for done in runs.values():
            client, server = (median(getattr(each, of) for each in done) for of in ("clients", "servers"))
            error = np.abs(done[0].mean - updates.astype(np.float64).mean(0)).max()
            row += [f"{1e3 * client / count:.1f} ms", f"{1e3 * server:,.1f} ms", f"{error:.0e}"]
        print("| " + " | ".join(row) + " |", flush=True)


if __name__ == "__main__":
    main()
