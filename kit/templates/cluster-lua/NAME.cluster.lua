-- @NAME@: 4 nodes with 8 devices each; put the numbers of your hardware here.
-- Rates are a second, sizes in bytes, times in seconds; shares say what of a rate is reached.
return {
  name = "@NAME@", nodes = 4,
  device = {
    name = "device of @NAME@", peak16 = 200e12, peak32 = 50e12, peak64 = 10e12,
    memory = "64GiB", bandwidth = 2e12, bandwidth_share = 0.8, gemm = 0.7,
    kernel = 3e-6, flash = { 0.3 }, launch = 5e-6,
  },
  node    = { devices = 8, bandwidth = 300e9, latency = 5e-6 },
  network = { nic = 200e9, latency = 1e-5, hop = 5e-6 },
  host    = { link = 25e9, bandwidth = 20e9, capacity = "2TiB" },
}
