-- Optimizers and clips as functions of each parameter: what mw.update computes is written here, and
-- sums over a parameter are sums over the ranks that have parts of it.
--   local updates = require "updates"
--   optimizer = updates.lamb { lr = 2e-3 }
local mw = require "meshwright"
local updates = {}

-- The options of an optimizer: defaults, and what is given.
local function with(defaults, given)
  for key, item in pairs(given or {}) do
    if defaults[key] == nil and key ~= "lr" and key ~= "clip" and key ~= "clip_by" then
      error(("updates: there is no option %s"):format(key), 3)
    end
    defaults[key] = item
  end
  return defaults
end

-- Adam's direction: the ratio of its two averages, without their bias from zero.
local function adam(g, s, t, o)
  local b1, b2 = o.betas[1], o.betas[2]
  s.m = b1 * s.m + (1 - b1) * g
  s.v = b2 * s.v + (1 - b2) * g * g
  return s.m / (1 - b1 ^ t.step) / ((s.v / (1 - b2 ^ t.step)):sqrt() + o.eps)
end

-- 1 where x is above 0, else 0; and a where that is 1, else b.
local function choose(x, a, b)
  local yes = x:step()
  return yes * a + (1 - yes) * b
end

--- LAMB (You et al. 2020): Adam's step, as long as the parameter times the learning rate.
function updates.lamb(given)
  local o = with({ betas = { 0.9, 0.999 }, eps = 1e-6, weight_decay = 0.01 }, given)
  return mw.update { name = "lamb", lr = o.lr, clip = o.clip, states = { "m", "v" }, step = function(p, g, s, t)
    local u = adam(g, s, t, o) + o.weight_decay * p
    local size, step = (p * p):sum():sqrt(), (u * u):sum():sqrt()
    return p - t.lr * choose(size * step, size / step:max(1e-30), 1) * u
  end }
end

--- Adafactor (Shazeer and Stern 2018), for matrices: averages of squares by rows and by columns,
--- steps clipped by their root mean square, and rates relative to the parameter's.
function updates.adafactor(given)
  local o = with({ decay = -0.8, eps = 1e-3, least = 1.19e-7, d = 1, weight_decay = 0 }, given)
  return mw.update { name = "adafactor", lr = o.lr, clip = o.clip, states = { rows = "rows", columns = "columns" },
    step = function(p, g, s, t)
      local new = (o.decay * t.step:log()):exp()  -- step ^ decay
      s.rows = s.rows + new * ((g * g):mean("columns") - s.rows)
      s.columns = s.columns + new * ((g * g):mean("rows") - s.columns)
      local v = s.rows * s.columns / s.rows:mean("matrix"):max(o.least)
      local u = g * v:max(o.least ^ 2):rsqrt()
      local rate = t.lr:min(t.step:rsqrt()) * (p * p):mean():sqrt():max(o.eps)
      return p * (1 - t.lr * o.weight_decay) - rate / ((u * u):mean():sqrt() / o.d):max(1) * u
    end }
end

--- Lion (Chen et al. 2023): the sign of an average.
function updates.lion(given)
  local o = with({ betas = { 0.9, 0.99 }, weight_decay = 0 }, given)
  return mw.update { name = "lion", lr = o.lr, clip = o.clip, states = { "m" }, step = function(p, g, s, t)
    local u = (o.betas[1] * s.m + (1 - o.betas[1]) * g):sign()
    s.m = o.betas[2] * s.m + (1 - o.betas[2]) * g
    return p * (1 - t.lr * o.weight_decay) - t.lr * u
  end }
end

--- Schedule-free AdamW (Defazio et al. 2024): gradients at y, between z, which steps, and the
--- average of z, with which a model is evaluated.
function updates.schedule_free(given)
  local o = with({ betas = { 0.9, 0.999 }, eps = 1e-8, weight_decay = 0 }, given)
  local b1, b2 = o.betas[1], o.betas[2]
  return mw.update { name = "schedule_free", lr = o.lr, clip = o.clip, states = { "average", "v" }, average = "average",
    step = function(y, g, s, t)
      local z = (y - b1 * s.average) / (1 - b1)
      s.v = b2 * s.v + (1 - b2) * g * g
      z = z - t.lr * (g / ((s.v / (1 - b2 ^ t.step)):sqrt() + o.eps) + o.weight_decay * y)
      s.average = s.average + (z - s.average) / t.step
      return (1 - b1) * z + b1 * s.average
    end }
end

--- Clips of a gradient, for a step of one's own: g = updates.clip.value(g, 1).
updates.clip = {
  value = function(g, most) return g:max(-most):min(most) end,
  --- Scales a parameter's gradient down to a norm.
  tensor = function(g, most) return g * (most / ((g * g):sum():sqrt() + 1e-6)):min(1) end,
  --- Scales rows of a matrix's gradient down to a share of the parameter's (Brock et al. 2021).
  adaptive = function(p, g, share)
    local function norm(x) return (x * x):sum("columns"):sqrt() end
    return g * (share * norm(p):max(1e-3) / norm(g):max(1e-6)):min(1)
  end,
}

--- AdamW with such a clip: updates.adamw { lr = 1e-3, clip_by = function(p, g) return … end }.
function updates.adamw(given)
  local o = with({ betas = { 0.9, 0.95 }, eps = 1e-8, weight_decay = 0.1 }, given)
  return mw.update { name = "adamw", lr = o.lr, clip = o.clip, states = { "m", "v" }, step = function(p, g, s, t)
    if o.clip_by then g = o.clip_by(p, g) end
    return p * (1 - t.lr * o.weight_decay) - t.lr * adam(g, s, t, o)
  end }
end

return updates
