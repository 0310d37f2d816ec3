"""The Flower app: every client adds a constant of its own to every parameter, the server averages.

Runs in Flower's environment. ``secure`` puts SecAgg+ around the same FedAvg: its workflow at the server, its mod at
the clients. The server notes when each round begins, and at the end the smallest and largest parameter.
"""

import time
from pathlib import Path

import numpy as np
from flwr.client import ClientApp, NumPyClient
from flwr.client.mod import secaggplus_mod
from flwr.common import ndarrays_to_parameters
from flwr.server import LegacyContext, ServerApp, ServerConfig
from flwr.server.strategy import FedAvg
from flwr.server.workflow import DefaultWorkflow, SecAggPlusWorkflow
from flwr.server.workflow.constant import MAIN_PARAMS_RECORD


class Adding(NumPyClient):
    """A client without data."""

    def __init__(self, amount):
        self.amount = np.float32(amount)

    def fit(self, parameters, config):
        return [one + self.amount for one in parameters], 1, {}


def make(context):
    return Adding(1e-3 * (1 + int(context.node_config["partition-id"]))).to_client()


def secure_if_asked(message, context, next_one):
    if context.run_config["secure"]:
        return secaggplus_mod(message, context, next_one)
    return next_one(message, context)


client = ClientApp(client_fn=make, mods=[secure_if_asked])
server = ServerApp()


class Marking(FedAvg):
    """FedAvg that notes when a round begins."""

    marks = ""

    def mark(self, text):
        with Path(self.marks).open("a") as out:
            out.write(f"{time.monotonic()} {text}\n")

    def configure_fit(self, server_round, parameters, client_manager):
        self.mark(f"round {server_round}")
        return super().configure_fit(server_round, parameters, client_manager)


@server.main()
def main(grid, context):
    asked = context.run_config
    clients, rounds = int(asked["clients"]), int(asked["rounds"])
    first = np.zeros(int(asked["parameters"]), dtype=np.float32)
    strategy = Marking(
        fraction_fit=1.0,
        fraction_evaluate=0.0,
        min_fit_clients=clients,
        min_available_clients=clients,
        initial_parameters=ndarrays_to_parameters([first]),
    )
    strategy.marks = asked["marks"]
    legacy = LegacyContext(context=context, config=ServerConfig(num_rounds=rounds), strategy=strategy)
    fit = SecAggPlusWorkflow(num_shares=3, reconstruction_threshold=2, max_weight=1.0) if asked["secure"] else None
    DefaultWorkflow(fit_workflow=fit)(grid, legacy)
    final = legacy.state.array_records[MAIN_PARAMS_RECORD].to_numpy_ndarrays()[0]
    strategy.mark(f"found {final.min()} {final.max()}")
    strategy.mark(f"round {rounds + 1}")
