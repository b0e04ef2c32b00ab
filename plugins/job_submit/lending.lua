-- requires: amounts
-- Chooses the GPUs on which a job runs: its group's own GPUs, GPUs without an owner, or borrowed GPUs. The choice is a
-- QOS, because Slurm counts GPUs by QOS; it does not depend on current use. Adds to job: loan = {owners, qos,
-- within_s, always, own_mgpu, cancelled}. `always`: the job can run only on borrowed GPUs. `own_mgpu`, set only if the
-- job named no QOS, is the number of its group's own GPUs. `cancelled` is the reason why Slurm cancels the job when
-- owners reclaim the GPUs; nil if Slurm requeues it.
--
-- A job that names a QOS runs in that QOS. Any other job with GPUs gets the first of these three sets of GPUs that is
-- large enough. By naming a QOS, users choose to wait for their own GPUs, or to borrow GPUs and risk a requeue.
local policy, lib = ...
local amounts = lib.amounts

local lending = policy.lending
local homes, loans, first_loans = {}, {}, nil

for _, owner in ipairs(lending and lending.owners or {}) do
  for account in pairs(owner.accounts) do
    homes[account] = owner
  end
  local loan = loans[owner.lend_in]
  if loan == nil then
    loan = { owners = {}, within_s = 0 }
    loans[owner.lend_in] = loan
    first_loans = first_loans or owner.lend_in
  end
  loan.owners[#loan.owners + 1] = owner.name
  loan.within_s = math.max(loan.within_s, owner.return_within_s)
end

-- Returns the QOS for a job that names no QOS; nil for its default QOS. If the job has to borrow, the second result is
-- the number of its group's own GPUs, in thousandths.
local function qos_for(job)
  local home = homes[job.account]
  if job.mgpu == 0 then
    return nil
  elseif home and job.mgpu <= home.mgpu then
    return home.qos
  elseif job.mgpu <= lending.unowned_mgpu then
    return nil
  end
  return first_loans, home and home.mgpu or 0
end

-- Returns the loan of a job in a QOS; nil if the QOS lends no GPUs. From Slurm 24.11 on, a job may name several QOS,
-- separated by commas, and runs in the first QOS that accepts it.
local function loan_in(names)
  local found, seen, always = nil, {}, true
  for name in names:gmatch("[^,]+") do
    local loan = loans[name]
    always = always and loan ~= nil
    if loan and not seen[name] then
      found = found or { owners = {}, within_s = 0, qos = {} }
      found.qos[#found.qos + 1] = name
      found.within_s = math.max(found.within_s, loan.within_s)
      for _, owner in ipairs(loan.owners) do
        found.owners[#found.owners + 1] = owner
      end
    end
    seen[name] = true
  end
  if found then
    found.qos, found.always = table.concat(found.qos, ","), always
  end
  return found
end

-- Returns why Slurm cancels the job when owners reclaim the GPUs; nil if Slurm requeues it.
local function cancelled(job)
  local command = job.command()
  if command == "srun" or command == "salloc" then
    return command .. " jobs cannot be requeued"
  end
  local requeue = amounts.u16(job.desc.requeue)
  if requeue == 0 or (requeue == nil and not lending.requeues) then
    return "add --requeue to have it requeued instead"
  end
  return nil
end

return function(job)
  if lending == nil or job.record then
    return {} -- Slurm does not change the QOS of a running job, and counts a pending job by its new QOS
  end
  local asked, own_mgpu = job.desc.qos, nil
  if type(asked) ~= "string" or asked == "" then
    local qos
    qos, own_mgpu = qos_for(job)
    if qos then
      job.qos = qos
      job.writes.qos = qos
    end
  end
  local loan = job.mgpu > 0 and loan_in(job.qos) or nil
  if loan then
    job.loan, loan.own_mgpu = loan, own_mgpu
    if not job.quiet then
      loan.cancelled = cancelled(job)
    end
  end
  return {}
end
