"""The ServerApp: combines the shared matrices without conflict."""

from flwr.app import ArrayRecord, ConfigRecord, Context
from flwr.serverapp import Grid, ServerApp
from safetensors.torch import save_file

from comity.flower import ConFREE  # was: from flwr.serverapp.strategy import FedAvg
from finetuning.task import adapters, build

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    sites: int = context.run_config["sites"]
    strategy = ConFREE(min_available_nodes=sites)  # was: FedAvg(min_available_nodes=sites)
    result = strategy.start(
        grid=grid,
        initial_arrays=ArrayRecord(adapters(build(), personal=False)),
        train_config=ConfigRecord({"lr": context.run_config["learning-rate"]}),
        num_rounds=context.run_config["num-server-rounds"],
    )
    save_file(result.arrays.to_torch_state_dict(), f"{context.run_config['out']}/shared.safetensors")
