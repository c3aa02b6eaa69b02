"""quickstart: the ServerApp, as in Flower's own quick start but for its strategy."""

import torch
from flwr.app import ArrayRecord, ConfigRecord, Context
from flwr.serverapp import Grid, ServerApp

from comity.flower import ConFREE  # was: from flwr.serverapp.strategy import FedAvg
from quickstart.task import Net

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Main entry point for the ServerApp."""
    fraction_train: float = context.run_config["fraction-train"]
    num_rounds: int = context.run_config["num-server-rounds"]
    lr: float = context.run_config["learning-rate"]

    # Load global model
    arrays = ArrayRecord(Net().state_dict())

    # Initialize strategy
    strategy = ConFREE(fraction_train=fraction_train)  # was: FedAvg(fraction_train=fraction_train)

    # Start strategy, run for `num_rounds`
    train_config = ConfigRecord({"lr": lr})
    result = strategy.start(grid=grid, initial_arrays=arrays, train_config=train_config, num_rounds=num_rounds)

    # Save final model to disk
    torch.save(result.arrays.to_torch_state_dict(), "final_model.pt")
