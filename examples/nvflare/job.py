"""NVFlare's FedAvg with another aggregator, in its simulator: python job.py --rule ConFREE"""

import argparse

from model import Net
from nvflare.app_opt.pt.recipes.fedavg import FedAvgRecipe
from nvflare.client.config import ExchangeFormat
from nvflare.recipe import SimEnv

from comity.nvflare import RuleAggregator


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rule", default="ConFREE")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--workspace", default="/tmp/nvflare/simulation")
    options = parser.parse_args()
    recipe = FedAvgRecipe(
        name="heart",
        model=Net(),
        min_clients=4,
        num_rounds=options.rounds,
        train_script="client.py",
        aggregator=RuleAggregator(rule=options.rule),
        server_expected_format=ExchangeFormat.PYTORCH,
    )
    run = recipe.execute(SimEnv(num_clients=4, num_threads=4, workspace_root=options.workspace))
    print(f"The model is in {run.get_result()}")


if __name__ == "__main__":
    main()
