# $title on Flower, with tables at their sites

Written by `comity flower new --schema`. Each site keeps its table; `$package/schema.yaml` describes the columns that a table must have.
Every machine needs `comity` with its extra `flower`. `pyproject.toml` contains the configuration.

A site checks its table and starts a SuperNode:

```sh
comity data patients.csv --schema $package/schema.yaml
comity supernode --insecure --superlink 127.0.0.1:8000 --node-config "data='/srv/patients.csv'"
```

The column `$client` of its table says which client a site is. If the table has no such column, add `client='...'` to
`--node-config`, with one of $names.

The operator starts the SuperLink and the run, here without encryption:

```sh
export FLWR_TELEMETRY_ENABLED=0     # otherwise Flower sends usage data to its developers
flower-superlink --insecure --host 127.0.0.1 --port 8000 --disable-runtime-dependency-installation &
mkdir -p ~/.flwr && printf '[superlink.here]\naddress = "127.0.0.1:8000"\ninsecure = true\n' >> ~/.flwr/config.toml
flwr run . here --stream
comity report $out -o report.html
```

To estimate whether joining pays before any training: `flwr run . here --stream -c "flower.ask=6"` (docs/how-to/ask.md of comity).

For a real deployment, use TLS and node authentication: docs/how-to/deploy.md of comity shows how.

## Where the files are

- The server's run folder is `$out/flower-<run id>`, below the folder in which the SuperLink was started.
- A site's model folder is `~/comity/$name/client-<number>/model` on the site's own machine;
  `comity predict` takes it. `--node-config "keep='/var/lib/comity'"` names another place.

## What the server sees

Before the first round each site sends one table of sums over its training samples: for each feature the number of known
values, their sum, their sum of squares, and the number of values other than 0 and 1. A feature with fewer than $least known values is
left out of a site's sums. From then on the server sees every client's update and a few scores per evaluation, but no row.
With `flower.ask` it sees such sums per fold, quartiles of columns, sums of losses and gradients, and scores.
