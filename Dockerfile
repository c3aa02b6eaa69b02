# comity on a CPU. Without a command it runs the demo: `docker build -t comity .`, then as docs/how-to/install.md says.
FROM python:3.12-slim
ENV PIP_NO_CACHE_DIR=1 PIP_EXTRA_INDEX_URL=https://download.pytorch.org/whl/cpu OMP_NUM_THREADS=1 HOME=/tmp
COPY pyproject.toml constraints.txt README.md LICENSE /src/
COPY src /src/src
RUN pip install -c /src/constraints.txt /src && rm -r /src && install -d -o 1000 /work
USER 1000
WORKDIR /work
CMD ["sh", "-c", "comity reproduce demo --out studies/demo && comity report studies/demo -o studies/demo/report.html"]
