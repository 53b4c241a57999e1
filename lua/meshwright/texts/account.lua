-- Where the seconds of a step went, beside what the machine takes for the same work.
local format = require "meshwright.format"

local most_rows = 12  -- of a part

local function ms(seconds)
  local finite = seconds and seconds == seconds and math.abs(seconds) < math.huge
  return finite and ("%.3f"):format(1e3 * seconds) or "-"
end

local function percent(part, whole) return whole > 0 and ("%.1f %%"):format(100 * part / whole) or "-" end

local function rate(amount, seconds)
  return seconds and amount > 0 and seconds > 0 and ("%.1f"):format(1e-9 * amount / seconds) or "-"
end

local function above(line) return line.limit_seconds and ms(line.seconds - line.limit_seconds) or "-" end

local works = { products = true, memory = true, copies = true }

local function parts_text(account)
  local rows, whole = {}, account.together
  local function add(name, line, is_work)
    rows[#rows + 1] = { name, ms(line.seconds), percent(line.seconds, whole.seconds), ms(line.slowest_seconds),
      ms(line.fastest_seconds), is_work and ms(line.limit_seconds) or "", is_work and above(line) or "" }
  end
  for _, line in ipairs(account.parts) do add(format.account_part(line.part), line, works[line.part]) end
  add("together", whole, true)
  local header = { "ms of a rank's step", "mean", "share", "slowest", "fastest", "limit", "above" }
  return format.table(header, { 2, 3, 4, 5, 6, 7 }, rows, "  ")
end

local function limit_text(account)
  local step, limit, products = account.together.slowest_seconds, account.limit_seconds, account.products_alone_seconds
  local text = ("  limit  %s ms, %s of the slowest rank's step: products alone %s ms (%s), bytes %s ms\n"):format(
    ms(limit), percent(limit, step), ms(products), percent(products, step), ms(limit - products))
  local mean = account.together.seconds
  for _, line in ipairs(account.parts) do
    if line.part == "no core" and line.seconds > 0.02 * mean then
      local had = mean - line.seconds
      text = text .. ("  a mean rank lacked a core for %s ms; of the other %s ms products alone are %s\n"):format(
        ms(line.seconds), ms(had), percent(products, had))
    end
  end
  local function gigabytes(name)
    return account[name] and ("%.1f GB/s"):format(1e-9 * account[name]) or "nan GB/s"
  end
  local products_part = 0
  for _, line in ipairs(account.parts) do
    if line.part == "products" then products_part = line.kernels end
  end
  text = text .. ("  kernels  at most %d started by a rank, and at most %d products; a mean rank read and wrote %s\n"):format(
    account.kernels, products_part, format.bytes(account.bytes))
  text = text .. ("  copies %s through memory on one rank alone, %s on each of all at once, %s in a cache\n"):format(
    gigabytes "memory_bytes_per_second", gigabytes "shared_memory_bytes_per_second", gigabytes "cache_bytes_per_second")
  for _, row in ipairs(account.rows) do
    if not row.limit_seconds then
      return text .. '  a limit "-" was not measured, and counts as 0 in the limit of the step\n'
    end
  end
  return text
end

local function rows_text(account, part)
  local header, right = { format.account_part(part), "calls", "ms", "limit ms", "GB/s", "limit GB/s" }, { 2, 3, 4, 5, 6 }
  if part == "products" then
    header = { "products", "operands", "calls", "ms", "ms alone", "GFLOP/s", "GFLOP/s alone" }
    right = { 3, 4, 5, 6, 7 }
  elseif part == "waits" then
    header, right = { header[1], "calls", "ms" }, { 2, 3 }
  end
  local rows, left, others = {}, 0, 0
  for _, row in ipairs(account.rows) do
    if row.part == part and #rows >= most_rows then
      left, others = left + 1, others + row.seconds
    elseif row.part == part then
      local cells = { row.name }
      if part == "products" then cells[2] = row.shape or "" end
      table.move({ tostring(row.calls), ms(row.seconds) }, 1, 2, #cells + 1, cells)
      if part ~= "waits" then
        local amount = part == "products" and row.flops or row.bytes
        table.move({ ms(row.limit_seconds), rate(amount, row.seconds), rate(amount, row.limit_seconds) }, 1, 3,
          #cells + 1, cells)
      end
      rows[#rows + 1] = cells
    end
  end
  if #rows == 0 then return "" end
  local text = "\n" .. format.table(header, right, rows, "  ")
  if left == 0 then return text end
  return ("%s  and %s that take %s ms together (--json has them)\n"):format(text, format.plural(left, "row"), ms(others))
end

return function(account)
  local text = format.line(("%s: step %d of %s, %s ms on %s"):format(account.name, account.step, account.mix,
    ms(account.seconds), format.plural(account.ranks, "rank"))) .. "\n\n" .. parts_text(account) .. "\n"
    .. limit_text(account)
  for _, part in ipairs { "products", "memory", "copies", "waits" } do text = text .. rows_text(account, part) end
  if #account.beside == 0 then return text end
  local rows = {}
  for k, line in ipairs(account.beside) do
    rows[k] = { line.name, line.slowest_rank < 0 and "of a core" or "of the slowest rank", ms(line.slowest_seconds) }
  end
  return text .. "\n" .. format.table({ "ms of a mean step, beside it", "", "each" }, { 3 }, rows, "  ")
end
