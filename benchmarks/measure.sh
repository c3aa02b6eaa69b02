#!/usr/bin/env bash
# Every measurement of docs/explanation/performance.md, one after another: about an hour on two cores. Nothing else may run.
#
#     COMITY_DATA=../shared/data PFLLIB=~/PFLlib benchmarks/measure.sh runs/speed [first part]
#
# Each part writes one log; with a part's name as second argument, the parts before it are left out.
set -u
cd "$(dirname "$0")/.."
out=$1 first=${2:-}
mkdir -p "$out"
python=$PWD/.venv/bin/python
heart=src/comity/data/sources/heart.csv
export OMP_NUM_THREADS=1 TIMEFORMAT='clock %1R s, processor %1U + %1S s'

part() {
  local name=$1
  shift
  if [ -n "$first" ] && [ "$name" != "$first" ]; then return; fi
  first=
  echo "$(date +%H:%M:%S) $name, load $(cut -d' ' -f1 /proc/loadavg)" | tee -a "$out/parts.log"
  "$@" >"$out/$name.log" 2>&1 || echo "$name failed" | tee -a "$out/parts.log"
}
bench() { "$python" "benchmarks/$1.py" "${@:2}"; }
steps() { for net in "lenet5 3 32 32" "lenet5 1 28 28" "mlp 1 28 28" "mlp 3 32 32" "mlp 1 8 8" "cnn 3 32 32"; do echo "$net"; bench step $net; done; }
answers() {
  rm -rf "$out"/{ask,join}
  for _ in 1 2 3; do time "$python" -m comity ask "$heart" --target disease --client hospital; done
  for n in 1 2 3; do time "$python" -m comity join "$heart" --target disease --client hospital --out "$out/join/$n"; done
  for _ in 1 2 3; do time "$python" -m comity --help >/dev/null; done
}
quick() { rm -rf "$out/quick"; time "$python" -m comity bench --quick --out "$out/quick"; }

part round-cifar bench round --models cnn lenet5 mlp --repeats 7
part round-28 bench round --models lenet5 mlp --shape 1 28 28 --repeats 15
part round-8 bench round --models mlp --shape 1 8 8 --repeats 15
part step steps
part evaluation bench evaluation
part answers answers
part quick quick
part flower bench flower_processes
part growth bench growth
part rules-450 bench growth --rules Mean ConFREE+1024 CALM+1024 --clients 450 --rounds 3
part rules-1000 bench growth --rules Mean ConFREE CALM --clients 1000 --rounds 2
part rules-10000 bench growth --rules Mean ConFREE+1024 CALM+1024 --clients 10000 --rounds 3
part fedjax bench peers fedjax
part pfl bench peers pfl
part flwr bench peers flwr
part fluke bench peers fluke
part pfllib bench peers pfllib ${PFLLIB:+--clone "$PFLLIB"}
part round-large bench round --models resnet10 vit-tiny --methods FedAvg --repeats 1
part sketch-1000 bench sketch scale --clients 1000
part masked bench masked
part long-digits bench growth --long digits
part long-clients bench growth --long clients tenth
part sketch-10000 bench sketch scale --clients 10000
part store bench growth --model resnet18 --clients 500 --samples 2 --store disk --rounds 0
echo "$(date +%H:%M:%S) end" | tee -a "$out/parts.log"
