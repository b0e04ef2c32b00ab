-- requires: amounts, wording
-- What a user is told whose job borrows GPUs.
local policy, lib = ...
local amounts = lib.amounts

return function(lines, loan)
  local borrows = loan.always and "borrows" or "may borrow"
  borrows = borrows .. " idle GPUs of " .. table.concat(loan.owners, ", ") .. " (QOS " .. loan.qos .. ")."
  if loan.own_mgpu then
    local own, unowned = amounts.format_mgpu(loan.own_mgpu), amounts.format_mgpu(policy.lending.unowned_mgpu)
    local asks = "This job asks for more GPUs than its account owns (%s) or nobody does (%s), so it %s"
    lib.wording.wrap(lines, string.format(asks, own, unowned, borrows), "")
  else
    lib.wording.wrap(lines, "This job " .. borrows, "")
  end
  local back = string.format("they go back within %.0f min, and it is requeued.", loan.within_s / 60)
  if loan.cancelled then
    back = string.format("they go back within %.0f min. %s", loan.within_s / 60, loan.cancelled)
  end
  lib.wording.wrap(lines, "When their owner needs them, " .. back, "  ")
end
