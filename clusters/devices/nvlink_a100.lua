-- All-reduces among 2, 4 and 8 A100 of a node over NVLink 3, measured with nccl-tests (out of
-- place) by the authors of vTrain (Bang et al. 2024, MICRO; MIT licence); all points of 1 MiB to 1
-- GiB are in tests/reference/nccl_ar_a100_*.csv. Of each size the median of those within 3 %.
local MiB = 2 ^ 20
return {
  {
    ranks = 2,
    points = {
      { 1 * MiB, 44.21e-6 }, { 2 * MiB, 53.43e-6 }, { 4 * MiB, 61.18e-6 }, { 8 * MiB, 86.9e-6 },
      { 12 * MiB, 109.1e-6 }, { 16 * MiB, 131.9e-6 }, { 24 * MiB, 176.5e-6 }, { 32 * MiB, 230e-6 },
      { 48 * MiB, 320.17e-6 }, { 64 * MiB, 407.14e-6 }, { 96 * MiB, 579.64e-6 },
      { 128 * MiB, 764.19e-6 }, { 192 * MiB, 1113.8e-6 }, { 256 * MiB, 1458.8e-6 },
      { 384 * MiB, 2151.8e-6 }, { 512 * MiB, 2829.7e-6 }, { 768 * MiB, 4162.3e-6 },
      { 1024 * MiB, 5460.9e-6 },
    },
  },
  {
    ranks = 4,
    points = {
      { 1 * MiB, 51.4e-6 }, { 2 * MiB, 55.74e-6 }, { 4 * MiB, 77.32e-6 }, { 8 * MiB, 116.8e-6 },
      { 12 * MiB, 139.2e-6 }, { 16 * MiB, 179.6e-6 }, { 24 * MiB, 220.2e-6 },
      { 32 * MiB, 284.2e-6 }, { 48 * MiB, 397.79e-6 }, { 64 * MiB, 543.8e-6 },
      { 96 * MiB, 784.85e-6 }, { 128 * MiB, 1008.9e-6 }, { 192 * MiB, 1467.2e-6 },
      { 256 * MiB, 1919.9e-6 }, { 384 * MiB, 2846e-6 }, { 512 * MiB, 3721e-6 },
      { 768 * MiB, 5510.4e-6 }, { 1024 * MiB, 7273.7e-6 },
    },
  },
  {
    ranks = 8,
    points = {
      { 1 * MiB, 92.79e-6 }, { 2 * MiB, 93.25e-6 }, { 4 * MiB, 95.8e-6 }, { 8 * MiB, 134.3e-6 },
      { 12 * MiB, 175.7e-6 }, { 16 * MiB, 232.4e-6 }, { 24 * MiB, 265.3e-6 },
      { 32 * MiB, 358.1e-6 }, { 48 * MiB, 488.68e-6 }, { 64 * MiB, 579.9e-6 },
      { 96 * MiB, 876.07e-6 }, { 128 * MiB, 1163.7e-6 }, { 192 * MiB, 1701e-6 },
      { 256 * MiB, 2182.2e-6 }, { 384 * MiB, 3214.2e-6 }, { 512 * MiB, 4177e-6 },
      { 768 * MiB, 6203.2e-6 }, { 1024 * MiB, 8204.2e-6 },
    },
  },
}
