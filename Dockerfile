# A CPU image: docker build -t bakeoff . && docker run --rm -v "$PWD/out:/out" bakeoff bench
FROM python:3.11-slim

# PyPI's torch for Linux contains CUDA (gigabytes); this index has the CPU build.
ARG PIP_EXTRA_INDEX_URL=https://download.pytorch.org/whl/cpu

WORKDIR /opt/bakeoff
COPY pyproject.toml constraints.txt README.md LICENSE ./
COPY impls impls
COPY harness harness
RUN python -m pip install --no-cache-dir --constraint constraints.txt '.[torch,data]'

WORKDIR /out
ENV BAKEOFF_CACHE=/out/cache
ENTRYPOINT ["bakeoff"]
CMD ["--help"]
