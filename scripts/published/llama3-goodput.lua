-- Llama 3 405B's 54 days on 16,384 H100: 419 unexpected interruptions, and more than 90 % of the
-- time in effective training (Grattafiori et al. 2024, section 3.3.4). How long a checkpoint or a
-- restart took is not published: a checkpoint here is the parameters, the fp32 copies and two
-- moments at the 2 TB/s that the storage sustains (section 3.3.1); the restart is a guess, and so
-- the script tells how long restarts could be. `./meshwright run
-- scripts/published/llama3-goodput.lua`
local mw = require "meshwright"

local days, devices, interruptions = 54, 16384, 419
local request = {
  step_seconds = 6.7,                                  -- scripts/published/llama3-405b.lua
  devices = devices,
  mtbf = days * 86400 * devices / interruptions,       -- 51 thousand hours
  checkpoint_seconds = 405e9 * (2 + 4 + 4 + 4) / 2e12,
  restart_seconds = 600,
  days = days,
}
local result = mw.goodput(request)
print(("a failure every %.1f hours; checkpoints every %.0f s (Young %.0f, Daly %.0f)"):format(
  result.failure_seconds / 3600, result.interval_seconds, result.young_seconds, result.daly_seconds))
print(("lost: %.1f %% to repeated work, %.1f %% to checkpoints, %.1f %% to restarts"):format(100 * result.lost.repeated,
  100 * result.lost.checkpoints, 100 * result.lost.restarts))
print(("effective: %.1f %% predicted (%.1f %% in closed form), more than 90 %% published"):format(
  100 * result.effective, 100 * result.closed_form))

-- The longest restart with which 90 % remain.
local least, most = 0, 3600
for _ = 1, 20 do
  request.restart_seconds, request.interval_seconds = (least + most) / 2, result.interval_seconds
  if mw.goodput(request).closed_form > 0.9 then least = request.restart_seconds else most = request.restart_seconds end
end
print(("restarts of up to %.0f minutes keep 90 %%"):format(least / 60))
