#!/usr/bin/env bash
# A simulated start script. The real one is not published; like it, this one wants the environment to be active, serves
# the image's checkpoint on port 8000 and takes more arguments, of which the last one counts.
set -euo pipefail
export VLLM_NEURON_FRAMEWORK=neuronx-distributed-inference
export NEURON_RT_VISIBLE_CORES=${NEURON_RT_VISIBLE_CORES:-0-7}
exec vllm serve --model /mnt/inference/models/gpt-oss-120b --port 8000 --tensor-parallel-size 8 --max-num-seqs 16 \
  --max-model-len 16384 --no-enable-prefix-caching --tool-call-parser openai --enable-auto-tool-choice \
  --speculative-config '{"method": "eagle3", "model": "/mnt/inference/models/gpt-oss-120b-eagle3", "num_speculative_tokens": 5}' \
  --additional-config '{"override_neuron_config": {"is_mxfp4_compute": true, "is_eagle3": true, "speculation_length": 5}}' \
  "$@"
