-- requires: amounts, fit, measures
-- What a job takes along beside its GPUs, held against its bundle: findings as in limits.lua. An update is held to it
-- as far as it lets the job take more along, or moves it to another bundle.
local policy, lib = ...
local amounts = lib.amounts

-- A bundle as the rule of its findings. What does not fit a bundle that fits jobs is only told.
local function as_rule(bundle)
  return {
    id = "bundle." .. bundle.name,
    title = "bundle " .. bundle.name,
    per = "job",
    why = bundle.why or "What a job takes along must leave the rest of the node of use.",
    mode = bundle.mode == "fit" and "advise" or bundle.mode,
    on_error = "allow",
  }
end

-- A job without GPUs that none of the bundles for such jobs takes in its partition: {finding} or {}.
local function misplaced(job)
  local allowed, first = {}, nil
  for _, bundle in ipairs(policy.bundles or {}) do
    if bundle.mgpu == 0 and bundle.partitions then
      first = first or bundle
      for name in pairs(bundle.partitions) do
        allowed[name] = true
      end
    end
  end
  if job.mgpu > 0 or first == nil or job.partition == "" then
    return {}
  end
  local names = {}
  for name in pairs(allowed) do
    names[#names + 1] = name
  end
  table.sort(names)
  local rule = as_rule(first)
  return {
    {
      rule = rule,
      key = "partitions",
      label = "partition of a job without GPUs",
      allowed = allowed,
      limit = table.concat(names, ", "),
      requested = job.partition,
      mode = rule.mode,
    },
  }
end

return function(job)
  local bundle, was = job.bundle, job.was
  local other = was == nil or job.mgpu < was.mgpu or job.partition ~= job.past.partition
  if bundle == nil then
    return other and misplaced(job) or {}
  end
  local rule, findings = as_rule(bundle), {}
  local with = job.mgpu > 0 and " with " .. amounts.format_mgpu(job.mgpu) .. " GPUs" or " without GPUs"
  local function hold(key, label, allowed, requested, before, text)
    if allowed == nil or not other and requested <= before then
      return
    end
    if rule.mode == "enforce" then
      job.room[key] = math.min(job.room[key] or math.huge, allowed)
    end
    local fits, told = requested <= allowed, lib.measures.are_told(job)
    if fits and not told then
      return
    end
    local finding = {
      rule = rule,
      key = key,
      label = label .. with,
      limit = text(allowed),
      requested = text(requested),
      mode = rule.mode,
    }
    if told then
      lib.measures.tell(finding, fits)
    end
    if not fits then
      findings[#findings + 1] = finding
    end
  end
  local cpus, mib = lib.fit.allowed(bundle, job.mgpu)
  hold("cpus", "CPUs", cpus, job.size.cpus, was and was.cpus, amounts.format_number)
  hold("memory", "memory", mib, job.size.mib, was and was.mib, amounts.format_mib)
  return findings
end
