-- requires: bundles, job, lending, limits, place, reserve, share, state, urgent
-- The modules that judge each job, in order: each may read what earlier ones added to the job.
local _, lib = ...

return {
  lib.job,
  lib.lending,
  lib.urgent,
  lib.state,
  lib.limits,
  lib.bundles,
  lib.place,
  lib.reserve,
  lib.share,
}
