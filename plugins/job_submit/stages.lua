-- requires: bundles, changes, job, lending, limits, place, reserve, share, state, urgent
-- The modules that judge each job, in order. Each may read the fields that earlier modules added to the job.
local _, lib = ...

return {
  lib.changes.present and lib.changes or lib.job,
  lib.lending,
  lib.urgent,
  lib.state,
  lib.limits,
  lib.bundles,
  lib.place,
  lib.reserve,
  lib.share,
}
