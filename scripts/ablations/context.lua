-- Context parallelism: which form sends least and which holds least, as sequences get longer?
--
-- With S tokens over n ranks, h = heads head_dim and k = kv_heads head_dim, a rank sends for
-- each layer and sequence: gathered keys 2 k S (n - 1)/n elements forward and as many backward
-- (Llama 3 Team 2024, arXiv:2407.21783); a ring the same forward, and in backward keys again and
-- their gradients all the way round (Liu et al. 2023, arXiv:2310.01889), 2 k S more; Ulysses (2
-- h + 2 k) S (n - 1)/n^2 each way (Jacobs et al. 2023, arXiv:2309.14509). All grow with S, so
-- which sends least depends on n, h and k, not on S. What is held beside a rank's S/n tokens is
-- all keys where they are gathered, three parts of them in a ring.
--
-- Bytes and memory are those of any machine. How much of a ring's sends hides behind compute is
-- not, so no time is compared here; the work of attention grows with S squared, which is why
-- rings pay on long sequences.
local mw = require "meshwright"
local sp = mw.plugins("sp")

local ranks = 4
local sweep = mw.sweep {
  name = "context",
  base = {
    model     = mw.llama { layers = 2, hidden = 128, heads = 8, kv_heads = 4, ffn = 352, vocab = 256 },
    data      = mw.text "gcide",
    batch     = 1,
    optimizer = mw.adamw { lr = 1e-3 },
    steps     = 3,
    threads   = 1,
  },
  over = {
    sequence = { 256, 1024, 2048 },
    form = {
      { name = "ring",      plan = { sp { ranks, form = "ring" } } },
      { name = "allgather", plan = { sp { ranks, form = "allgather" } } },
      { name = "ulysses",   plan = { sp { ranks, form = "ulysses" } } },
    },
  },
  same_loss_as = "ring",
}
local cells = sweep:go()

-- Elements over S, of two layers, forward and backward.
local h, k, n = 128, 64, ranks
local formula = { ring = 2 * (4 * k * (n - 1) / n + 2 * k), allgather = 2 * 4 * k * (n - 1) / n,
                  ulysses = 2 * 2 * (2 * h + 2 * k) * (n - 1) / n ^ 2 }

local function attention(uses)                   -- what goes over cp but gradients' sum
  local sum = 0
  for _, use in ipairs(uses) do
    local inside = use.phase == "forward" or use.phase == "backward"
    if inside and use.op ~= "all-reduce" then sum = sum + use.bytes end
  end
  return sum
end

print("sequence   form        sent, KiB: measured   predicted   formula   activations, KiB: measured   predicted")
local sent, held, ran = {}, {}, 0
for _, cell in ipairs(cells) do
  local p, done = cell.predicted, cell.status == "done"
  if p and (done or cell.status == "predicted") then
    local form, tokens = cell.values.form, tonumber(cell.values.sequence)
    local row = { form = form, sent = attention(p.communication), held = p.memory[1].activations }
    if done then
      row.sent, row.held, ran = attention(cell.communication), cell.memory.activations, ran + 1
    end
    sent[tokens], held[tokens] = sent[tokens] or {}, held[tokens] or {}
    sent[tokens][#sent[tokens] + 1], held[tokens][#held[tokens] + 1] = row, row
    print(("%8d   %-10s %20s %11.0f %9.0f %28s %11.0f"):format(tokens, form,
          done and ("%.0f"):format(row.sent / 1024) or "", attention(p.communication) / 1024,
          4 * formula[form] * tokens / 1024, done and ("%.0f"):format(row.held / 1024) or "", p.memory[1].activations / 1024))
  end
end
if ran > 0 then sweep:report("runs/context.html") end

local function said(tokens)
  table.sort(sent[tokens], function(a, b) return a.sent < b.sent end)
  table.sort(held[tokens], function(a, b) return a.held < b.held end)
  local s, m = sent[tokens], held[tokens]
  return ("of %d tokens %s sends least (%.0f KiB; %s most, %.0f) and %s holds least (%.0f KiB; %s most, %.0f)"):format(
    tokens, s[1].form, s[1].sent / 1024, s[3].form, s[3].sent / 1024, m[1].form, m[1].held / 1024, m[3].form,
    m[3].held / 1024)
end
if sent[256] and #sent[256] == 3 and sent[2048] and #sent[2048] == 3 then
  print(("Answer: %s, %s%s."):format(said(256), said(2048), ran == 0 and "; all of it predicted" or ""))
else
  print "No answer: it takes all cells, and the table says which are not done."
end
