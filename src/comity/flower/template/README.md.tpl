# $title on Flower

Written by `comity flower new`. The app imports the installed `comity`, which every machine needs with its extra
`flower`. `pyproject.toml` contains the configuration, and `$package/data.py` loads a site's own data.

To try it on one machine, without encryption:

```sh
export FLWR_TELEMETRY_ENABLED=0     # otherwise Flower sends usage data to its developers
flower-superlink --insecure --host 127.0.0.1 --port 8000 --disable-runtime-dependency-installation &
for i in $$(seq 0 $last); do
  comity supernode --insecure --superlink 127.0.0.1:8000 --port $$((9000 + i)) \
    --node-config "partition-id=$$i num-partitions=$clients" &
done
mkdir -p ~/.flwr && printf '[superlink.here]\naddress = "127.0.0.1:8000"\ninsecure = true\n' >> ~/.flwr/config.toml
flwr run . here --stream
```

For a real deployment, use TLS and node authentication: docs/how-to/deploy.md of comity shows how.

## What the server sees

By default the server sees every client's update, because rules compare updates with each other. To hide them, turn on
secure aggregation with `masked = true` in `pyproject.toml`. The server then sees one sum of the updates and, if the rule
compares updates, random sketches of them. For this, every node needs a file with its
secrets: `comity flower keys FOLDER --clients $clients` writes one per client. A node rejects runs that protect it less
than the policy in its file requires, by default a sum over at least five clients. A few methods and rules cannot run
masked; docs/how-to/masked-sums.md of comity lists them. No cryptographer has audited secure aggregation in comity.

In both cases, a client's personal state stays on its node.
