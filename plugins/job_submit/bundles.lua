-- requires: amounts, fit, measures, wording
-- Compares the CPUs and memory of a job with its bundle, and returns findings as limits.lua does. An update is checked
-- only if it raises the CPUs or memory, reduces the job's GPUs, or changes its partition.
local policy, lib = ...
local amounts = lib.amounts

-- Returns the rule for findings about a bundle. With `mode: fit`, a job that exceeds the bundle only causes a warning.
local function as_rule(bundle)
  return {
    id = "bundle." .. bundle.name,
    title = "bundle " .. bundle.name,
    per = "job",
    why = bundle.why or "If a job takes more CPUs or memory, other GPUs of its node become unusable.",
    mode = bundle.mode == "fit" and "advise" or bundle.mode,
    on_error = "allow",
  }
end

-- Returns {finding} for a job without GPUs that may start in a partition that no bundle with `gpus: 0` lists;
-- otherwise {}.
local function misplaced(job)
  local names, first = {}, nil
  for _, bundle in ipairs(policy.bundles or {}) do
    if bundle.mgpu == 0 then
      if bundle.partitions == nil then
        return {}
      end
      first = first or bundle
      for name in pairs(bundle.partitions) do
        names[name] = true
      end
    end
  end
  local outside = false
  for name in string.gmatch(job.partition, "[^,]+") do
    outside = outside or not names[name]
  end
  if job.mgpu > 0 or first == nil or not outside then
    return {}
  end
  local rule = as_rule(first)
  return {
    {
      rule = rule,
      key = "partitions",
      label = "partition of a job without GPUs",
      names = names,
      allowed = lib.wording.names(names),
      requested = job.partition,
      mode = rule.mode,
    },
  }
end

return function(job)
  local bundle, was = job.bundle, job.was
  local other = was == nil or job.mgpu < was.mgpu or job.partition ~= job.past.partition
  local findings = other and misplaced(job) or {}
  if bundle == nil then
    return findings
  end
  local rule = as_rule(bundle)
  local n_gpus = amounts.format_mgpu(job.mgpu)
  local with = job.mgpu > 0 and " with " .. n_gpus .. (n_gpus == "1" and " GPU" or " GPUs") or " without GPUs"
  local function check(key, label, allowed, requested, before, text)
    if allowed == nil or not other and requested <= before then
      return
    end
    if rule.mode == "enforce" then
      job.room[key] = math.min(job.room[key] or math.huge, allowed)
    end
    local fits, reports = requested <= allowed, lib.measures.are_reported(job)
    if fits and not reports then
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
    if reports then
      lib.measures.report(finding, fits)
    end
    if not fits then
      findings[#findings + 1] = finding
    end
  end
  local cpus, mib = lib.fit.allowed(bundle, job.mgpu)
  check("cpus", "CPUs", cpus, job.size.cpus, was and was.cpus, amounts.format_number)
  check("memory", "memory", mib, job.size.mib, was and was.mib, amounts.format_mib)
  return findings
end
