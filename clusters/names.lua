-- What this folder describes, for messages.
return {
  cluster = {
    "b200", "dgx-a100-40", "dgx-a100-80", "dgx-h100", "dgx-h100-llama3", "dgx-v100", "h200", "h800", "selene",
    "tpu-v4", "tpu-v5p", "vtrain",
  },
  stack = {
    "deepseek-v3", "fsdp-mpt", "fsdp2", "fsdp2-eager", "llama3", "maxtext", "megatron-2021", "megatron-2022", "megatron-core",
    "meshwright", "nvidia-2025", "nvidia-2025-fp8", "vtrain", "zero3-2021",
  },
}
