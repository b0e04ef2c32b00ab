-- requires: bundles, job, lending, limits, place, reserve, share, state, urgent
-- Lists the modules that judge each job, in order. Each module may read the fields that earlier modules added to the
-- job.
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
