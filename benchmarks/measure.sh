#!/usr/bin/env bash
# Every measurement of docs/explanation/performance.md, the most important first, on two cores. Nothing else may run.
#
#     PFLLIB=~/PFLlib COMITY_DATA=../shared/data benchmarks/measure.sh runs/speed [minutes, 45 by default]
#
# Each part writes one log, whose rows are rows of that page, and may take the minutes beside it, about twice what it
# needs. A part that could end after the last minute is left out. Parts whose log is there are not measured again.
set -u
cd "$(dirname "$0")/.."
mkdir -p "$1"
out=$(realpath "$1") limit=$((60 * ${2:-45}))
python=${PYTHON:-$PWD/.venv/bin/python}
export OMP_NUM_THREADS=1

note() { echo "$(date +%H:%M:%S) $*, load $(cut -d' ' -f1 /proc/loadavg)" | tee -a "$out/parts.log"; }
part() {
  local name=$1 minutes=$2 program=benchmarks/$3.py log=$out/$1.log
  if [ -e "$log" ]; then return; fi
  if [ $((SECONDS + 60 * minutes)) -gt "$limit" ]; then note "$name left out"; return; fi
  if [ "$3" = -m ]; then program=-m; fi
  note "$name"
  if timeout -k 10 "${minutes}m" "$python" "$program" "${@:4}" >"$log.part" 2>&1; then mv "$log.part" "$log"; else note "$name failed"; fi
}

note "$(git rev-parse --short HEAD), $(sed -n 's/^model name.*: //p' /proc/cpuinfo | head -1)"
part round-cifar 4 round --models cnn lenet5 mlp --repeats 7
part round-28 3 round --models lenet5 mlp --shape 1 28 28 --repeats 15
part round-8 2 round --models mlp --shape 1 8 8 --repeats 15
part evaluation-28 2 evaluation --models mlp --shape 1 28 28 --repeats 7
part evaluation-cifar 2 evaluation --models mlp --repeats 7
part answers 3 answers
part rules-10000 7 growth --rules Mean ConFREE+1024 CALM+1024 --clients 10000 --rounds 3
part fedjax 2 peers fedjax
part pfl 2 peers pfl
part flwr 2 peers flwr
part fluke 2 peers fluke
part pfllib 3 peers pfllib ${PFLLIB:+--clone "$PFLLIB"}
part flower 5 flower_processes
part rules-450 2 growth --rules Mean ConFREE+1024 CALM+1024 --clients 450 --rounds 3
part rules-1000 3 growth --rules Mean ConFREE CALM --clients 1000 --rounds 2
part growth 2 growth
part quick 12 answers --quick
part step 2 step
part evaluation-cnn 3 evaluation --models cnn
part masked 2 masked
part round-large 6 round --models resnet10 vit-tiny --methods FedAvg --repeats 1
part ratios 7 -m pytest -n 0 -q benchmarks
part sketch-1000 2 sketch scale --clients 1000
part long-digits 4 growth --long digits
part long-tenth 3 growth --long tenth
part long-clients 6 growth --long clients
part sketch-10000 5 sketch scale --clients 10000
part store 6 growth --model resnet18 --clients 500 --samples 2 --store disk --rounds 0
note end
