-- How well predictions rank plans: Spearman's correlation of ranks, and regret, by how much the
-- plan that is predicted to be the fastest is slower than the one that was.
local ranking = {}

-- Ranks from 1 on; equal numbers share the mean of theirs.
local function ranks(list)
  local order, result = {}, {}
  for i = 1, #list do order[i] = i end
  table.sort(order, function(a, b) return list[a] < list[b] or list[a] == list[b] and a < b end)
  local first = 1
  while first <= #order do
    local last = first
    while last < #order and list[order[last + 1]] == list[order[first]] do last = last + 1 end
    for k = first, last do result[order[k]] = (first + last) / 2 end
    first = last + 1
  end
  return result
end

function ranking.spearman(a, b)
  local x, y, n = ranks(a), ranks(b), #a
  local mean, up, left, right = (n + 1) / 2, 0, 0, 0
  for i = 1, n do
    up = up + (x[i] - mean) * (y[i] - mean)
    left, right = left + (x[i] - mean) ^ 2, right + (y[i] - mean) ^ 2
  end
  return up / math.sqrt(left * right)
end

function ranking.regret(predicted, published)
  local chosen, best = 1, math.huge
  for i = 1, #predicted do
    if predicted[i] < predicted[chosen] then chosen = i end
    best = math.min(best, published[i])
  end
  return published[chosen] / best - 1
end

return ranking
