"""A script whose run counts its starts and can kill itself, for tests of what is started again."""

_SCRIPT = """\
local mw = require "meshwright"
local dp, tp = mw.plugins("dp", "tp")
io.open("starts", "a"):write("x\\n"):close()
function starts()  -- a global: what `observe` closes over makes another experiment
  local n = 0
  for _ in io.lines("starts") do n = n + 1 end
  return n
end
function kill() os.execute("kill -9 $PPID; sleep 5") end
local e = {
  model = mw.llama { layers = 1, hidden = 32, heads = 4, ffn = 64, vocab = 64 },
  data = mw.synthetic {}, sequence = 16, plan = { %s }, batch = 4,
  optimizer = mw.adamw { lr = 1e-3 }, steps = 6, log = "a.h5",
}
%s
mw.train(e)
"""


def restart_script(plan, changes):
    """`plan`: of dp and tp; `changes`: Lua that alters the experiment `e`. `starts` has a line for each start of a process."""
    return _SCRIPT % (plan, changes)
