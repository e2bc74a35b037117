# A node for NVIDIA GPUs, on vLLM's own image. From the repository's root:
#     docker build -f deploy/docker/cuda.Dockerfile -t baton/node-cuda .
ARG VLLM=vllm/vllm-openai:v0.32.0

FROM ${VLLM} AS baton
ENV PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_BREAK_SYSTEM_PACKAGES=1
COPY requirements/build.txt /requirements/
RUN python3 -m pip install --no-deps --target /tools -r /requirements/build.txt
COPY . /src
WORKDIR /src
RUN PYTHONPATH=/tools python3 -m hatchling build -t wheel -d /wheel

FROM ${VLLM}
ENV PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_BREAK_SYSTEM_PACKAGES=1 PYTHONUNBUFFERED=1
# What Mooncake links to, and process 1. Ubuntu keeps only the newest version of a package.
# hadolint ignore=DL3008
RUN apt-get update \
    && DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends \
        ibverbs-providers libcurl4 libibverbs1 libnuma1 librdmacm1 tini \
    && rm -rf /var/lib/apt/lists/*
# vLLM's image has a Mooncake of its own version; which build of it is there depends on the image's CUDA.
COPY requirements/cuda.txt /requirements/
RUN python3 -m pip uninstall -y mooncake-transfer-engine mooncake-transfer-engine-cuda13 \
    && python3 -m pip install --no-deps -r /requirements/cuda.txt
COPY --from=baton /wheel /wheel
# Nothing of vLLM's is replaced; the last line fails the build if Baton misses something in it.
SHELL ["/bin/bash", "-o", "pipefail", "-c"]
RUN python3 -m pip install --no-deps /wheel/*.whl \
    && { python3 -m pip check || true; } | { ! grep '^baton-serve '; }
RUN useradd --uid 10001 --user-group --create-home baton \
    && ln -s "$(python3 -c 'from baton.deploy.embedded_model import WEIGHTS; print(WEIGHTS)')" /opt/embedded-model \
    && install -d -o baton -g baton /models \
    && install -d -o baton -g baton -m 0700 /run/baton
WORKDIR /home/baton
ENV HF_HOME=/models BATON_PREFILL_NODE_HOST=0.0.0.0 BATON_DECODE_NODE_HOST=0.0.0.0
USER 10001:10001
EXPOSE 8100 8200 9100
HEALTHCHECK --interval=5s --timeout=5s --start-period=900s CMD ["baton", "health", "prefill", "decode"]
ENTRYPOINT ["tini", "--", "baton"]
CMD ["prefill"]
