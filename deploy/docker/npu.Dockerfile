# A node for Ascend NPUs, on vllm-ascend's own image. From the repository's root:
#     docker build -f deploy/docker/npu.Dockerfile -t baton/node-npu .
ARG VLLM_ASCEND=quay.io/ascend/vllm-ascend:v0.23.0

FROM ${VLLM_ASCEND} AS baton
ENV PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_BREAK_SYSTEM_PACKAGES=1
COPY requirements/build.txt /requirements/
RUN python3 -m pip install --no-deps --target /tools -r /requirements/build.txt
COPY . /src
WORKDIR /src
RUN PYTHONPATH=/tools python3 -m hatchling build -t wheel -d /wheel

FROM ${VLLM_ASCEND}
ENV PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_BREAK_SYSTEM_PACKAGES=1 PYTHONUNBUFFERED=1
# What Mooncake links to, and process 1. Ubuntu keeps only the newest version of a package.
# hadolint ignore=DL3008
RUN apt-get update \
    && DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends \
        libcurl4 libibverbs1 libnuma1 tini \
    && rm -rf /var/lib/apt/lists/*
# vllm-ascend's image has a Mooncake of its own version, and looks for libraries in /usr/local/lib only in a login shell.
ENV LD_LIBRARY_PATH=/usr/local/lib:$LD_LIBRARY_PATH
COPY requirements/npu.txt /requirements/
RUN python3 -m pip uninstall -y mooncake-transfer-engine mooncake-transfer-engine-npu \
    && python3 -m pip install --no-deps -r /requirements/npu.txt
COPY --from=baton /wheel /wheel
# Nothing of vllm-ascend's is replaced; the last line fails the build if Baton misses something in it.
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
# Between tini and Baton stands what the base's own entry point does: CANN's variables, ATB's for the ABI of the torch in use.
ENTRYPOINT ["tini", "--", "/bin/bash", "-c", "for each in /usr/local/Ascend/ascend-toolkit/set_env.sh /usr/local/Ascend/cann-*/share/info/ascendnpu-ir/bin/set_env.sh /usr/local/Ascend/nnal/atb/set_env.sh; do [ ! -r $each ] || source $each; done; exec baton \"$@\"", "--"]
CMD ["prefill"]
