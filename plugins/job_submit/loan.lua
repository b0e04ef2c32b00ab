-- requires: amounts, wording
-- Writes the message about a job that borrows GPUs.
local policy, lib = ...
local amounts = lib.amounts

return function(lines, loan)
  local borrows = loan.always and "borrows" or "may borrow"
  borrows = borrows .. " idle GPUs of " .. table.concat(loan.owners, ", ") .. " (QOS " .. loan.qos .. ")."
  if loan.own_mgpu then
    local own, unowned = amounts.format_mgpu(loan.own_mgpu), amounts.format_mgpu(policy.lending.unowned_mgpu)
    local asks = "This job requests more GPUs than its account owns (%s) and more than are unowned (%s), so it %s"
    lib.wording.wrap(lines, string.format(asks, own, unowned, borrows), "")
  else
    lib.wording.wrap(lines, "This job " .. borrows, "")
  end
  local ending = loan.cancelled and "cancelled; " .. loan.cancelled or "requeued"
  local text = "Owners can reclaim them within %.0f min; the job is then %s."
  lib.wording.wrap(lines, string.format(text, loan.within_s / 60, ending), "  ")
end
