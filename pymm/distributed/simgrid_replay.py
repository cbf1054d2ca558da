"""Replay the steps of a distributed product in SimGrid (H. Casanova et al., Versatile, Scalable,
and Accurate Simulation of Distributed Applications and Platforms, 2014).

A script for the Python that has SimGrid's module, the system's: it imports nothing of pymm, reads
what `pymm.distributed.simgrid` writes as JSON on standard input, and writes JSON to standard
output.

Every process is a host with one core and a full-duplex link to a crossbar that is never the limit.
What it receives shares its link, as does what it sends.
"""

from __future__ import annotations

import json
import sys

from simgrid import Actor, Comm, Engine, LinkInRoute, Mailbox, NetZone, simgrid_version, this_actor

#: SimGrid's defaults model TCP between hosts of a grid: a window of 4 MB, factors fitted to it, and
#: acknowledgements that take 5 % of the other direction. The rates given here are net.
SETTINGS = (
    "network/TCP-gamma:0",
    "network/latency-factor:1",
    "network/bandwidth-factor:1",
    "network/crosstraffic:0",
)


def replay(work: dict) -> dict:
    """Simulated seconds, seconds of the products of the busiest process, and the bytes that each
    rank received.
    """
    options = [f"--cfg={setting}" for setting in SETTINGS]
    engine = Engine([sys.argv[0], *options, "--log=root.thres:error"])
    rates, (rows, columns, layers) = work["rates"], work["grid"]
    zone = NetZone.create_star_zone("hosts")
    processes = []
    for rank in range(rows * columns * layers):
        host = zone.create_host(str(rank), rates["flops"])
        link = zone.create_split_duplex_link(str(rank), rates["bandwidth"])
        link.set_latency(rates["latency"] / 2).seal()  # of two links between any two hosts
        way = [LinkInRoute(link, LinkInRoute.UP)]
        zone.add_route(host.netpoint, None, None, None, way, True)
        processes.append((host, Process(work, rank)))
    zone.seal()
    for rank, (host, process) in enumerate(processes):
        Actor.create(str(rank), host, process.run)
    engine.run()
    return {
        "seconds": Engine.clock,
        "multiplying": max(process.multiplying for _, process in processes),
        "received": [process.received for _, process in processes],
        "simgrid": simgrid_version,
    }


class Process:
    """What one rank does: as `pymm.distributed.engine`, with an all-gather of direct messages."""

    def __init__(self, work: dict, rank: int) -> None:
        self.work, self.rates, self.item = work, work["rates"], work["itemsize"]
        self.rows, self.columns, self.layers = work["grid"]
        above, self.q = divmod(rank, self.columns)
        self.r, self.p = divmod(above, self.rows)
        self.height, self.width = work["rows"][self.p], work["columns"][self.q]
        self.steps = work["steps"][self.r]
        self.multiplying, self.received = 0.0, 0

    def rank(self, p: int, q: int, r: int) -> int:
        """The rank at row p and column q of layer r."""
        return (r * self.rows + p) * self.columns + q

    def run(self) -> None:
        """All steps, and the sum over the layers."""
        ahead, hidden = None, 0.0
        for number, step in enumerate(self.steps):
            self.wait(self.gather(step) if ahead is None else ahead)
            # The part of a transfer that the product before it does not hide.
            this_actor.execute(hidden * self.rates["flops"])
            seconds, ahead, hidden = self.product_seconds(step), None, 0.0
            if self.work["look_ahead"] and number + 1 < len(self.steps):
                following = self.steps[number + 1]
                ahead = self.gather(following)
                shorter = min(seconds, self.transfer_seconds(following))
                hidden = (1 - self.rates["overlap"]) * shorter
            self.multiplying += seconds
            this_actor.execute(seconds * self.rates["flops"])
        if self.layers > 1:
            self.wait(self.reduce())

    def wait(self, begun: list) -> None:
        """Until all of these messages are there, whose payloads are their bytes."""
        Comm.wait_all([message for message, _ in begun])
        self.received += sum(payload.get() for _, payload in begun if payload)

    def product_seconds(self, step: dict) -> float:
        """The operations of one panel, and C read and written."""
        area = self.height * self.width
        traffic = 2 * area * self.item
        return 2 * area * step["depth"] / self.rates["flops"] + traffic / self.rates["memory"]

    def transfer_seconds(self, step: dict) -> float:
        """One panel of A and of B, if nothing else is in the way."""
        of_a = self.height * (step["depth"] - step["of_a"][self.q])
        of_b = self.width * (step["depth"] - step["of_b"][self.p])
        count = (of_a + of_b) * self.item
        return count / self.rates["bandwidth"] + (self.rates["latency"] if count else 0.0)

    def gather(self, step: dict) -> list:
        """Begin to exchange the pieces of a panel of A in the row, of B in the column."""
        begun = []
        for q in range(self.columns):
            sizes = (self.height * step["of_a"][i] for i in (self.q, q))
            begun += self.exchange(self.rank(self.p, q, self.r), *sizes)
        for p in range(self.rows):
            sizes = (self.width * step["of_b"][i] for i in (self.p, p))
            begun += self.exchange(self.rank(p, self.q, self.r), *sizes)
        return begun

    def reduce(self) -> list:
        """Begin to send every layer the rows that it keeps, and to receive this one's."""
        kept = self.work["kept"]
        begun = []
        for r in range(self.layers):
            sizes = (kept[i][self.p] * self.width for i in (r, self.r))
            begun += self.exchange(self.rank(self.p, self.q, r), *sizes)
        return begun

    def exchange(self, other: int, sent: int, received: int) -> list:
        """Begin one message each way, of so many words; empty ones are left out."""
        own, begun = self.rank(self.p, self.q, self.r), []
        if other != own and sent:
            box = Mailbox.by_name(f"{own} {other}")
            begun.append((box.put_async(sent * self.item, sent * self.item), None))
        if other != own and received:
            begun.append(Mailbox.by_name(f"{other} {own}").get_async())
        return begun


if __name__ == "__main__":
    print(json.dumps(replay(json.load(sys.stdin))))
