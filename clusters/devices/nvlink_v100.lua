-- All-reduces among 2, 4 and 8 V100 of a node over NVLink 2, measured with nccl-tests (out of
-- place) by the authors of vTrain (Bang et al. 2024, MICRO; MIT licence); all points of 1 MiB to 1
-- GiB are in tests/reference/nccl_ar_v100_*.csv. Of each size the median of those within 3 %.
local MiB = 2 ^ 20
return {
  {
    ranks = 2,
    points = {
      { 1 * MiB, 70.14e-6 }, { 2 * MiB, 116e-6 }, { 4 * MiB, 208.6e-6 }, { 8 * MiB, 392.5e-6 },
      { 12 * MiB, 581e-6 }, { 16 * MiB, 764.1e-6 }, { 24 * MiB, 1136.5e-6 },
      { 32 * MiB, 1508.9e-6 }, { 48 * MiB, 2256.1e-6 }, { 64 * MiB, 3000.5e-6 },
      { 96 * MiB, 4484.7e-6 }, { 128 * MiB, 5976e-6 }, { 192 * MiB, 8946.5e-6 },
      { 256 * MiB, 11915e-6 }, { 384 * MiB, 17861e-6 }, { 512 * MiB, 23802e-6 },
      { 768 * MiB, 35700e-6 }, { 1024 * MiB, 47604e-6 },
    },
  },
  {
    ranks = 4,
    points = {
      { 1 * MiB, 67.26e-6 }, { 2 * MiB, 95.26e-6 }, { 4 * MiB, 142.1e-6 }, { 8 * MiB, 177.8e-6 },
      { 12 * MiB, 250.6e-6 }, { 16 * MiB, 324.2e-6 }, { 24 * MiB, 472.2e-6 },
      { 32 * MiB, 618.4e-6 }, { 48 * MiB, 911.51e-6 }, { 64 * MiB, 1205.6e-6 },
      { 96 * MiB, 1780.6e-6 }, { 128 * MiB, 2367.1e-6 }, { 192 * MiB, 3548.1e-6 },
      { 256 * MiB, 4727.6e-6 }, { 384 * MiB, 7085.8e-6 }, { 512 * MiB, 9452.3e-6 },
      { 768 * MiB, 14176e-6 }, { 1024 * MiB, 18903e-6 },
    },
  },
  {
    ranks = 8,
    points = {
      { 1 * MiB, 79.93e-6 }, { 2 * MiB, 101.3e-6 }, { 4 * MiB, 150.9e-6 }, { 8 * MiB, 237.9e-6 },
      { 12 * MiB, 300.5e-6 }, { 16 * MiB, 273.8e-6 }, { 24 * MiB, 365.6e-6 },
      { 32 * MiB, 479.3e-6 }, { 48 * MiB, 693.45e-6 }, { 64 * MiB, 910.83e-6 },
      { 96 * MiB, 1341.9e-6 }, { 128 * MiB, 1772.2e-6 }, { 192 * MiB, 2643.9e-6 },
      { 256 * MiB, 3528.2e-6 }, { 384 * MiB, 5261.9e-6 }, { 512 * MiB, 7002.3e-6 },
      { 768 * MiB, 10484e-6 }, { 1024 * MiB, 13972e-6 },
    },
  },
}
