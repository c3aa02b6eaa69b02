"""The same ClientApp with a mod of Flower's: what leaves the site is clipped, and noisy where an epsilon is given.

With ``clipping-norm`` alone the mod clips: no client can move the model further than that. With ``epsilon`` too it is
local differential privacy, (epsilon, 1e-5) for each round and each whole data set; rounds add up, which Flower does not
account for. Either way the server combines what it receives, whatever the rule, so the rule costs no privacy.
"""

from flwr.app import Context, Message
from flwr.clientapp import ClientApp
from flwr.clientapp.mod import LocalDpMod, fixedclipping_mod
from flwr.clientapp.typing import ClientAppCallable

from quickstart.client_app import evaluate, train

app = ClientApp()


def private(msg: Message, context: Context, call_next: ClientAppCallable) -> Message:
    norm, epsilon = float(context.run_config["clipping-norm"]), float(context.run_config.get("epsilon", 0.0))
    if epsilon == 0:
        msg.content["config"]["clipping_norm"] = norm  # the mod expects it from the server
        return fixedclipping_mod(msg, context, call_next)
    # two clipped updates are at most twice the norm apart
    return LocalDpMod(clipping_norm=norm, sensitivity=2 * norm, epsilon=epsilon, delta=1e-5)(msg, context, call_next)


app.train(mods=[private])(train)
app.evaluate()(evaluate)
