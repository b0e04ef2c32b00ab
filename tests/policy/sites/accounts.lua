-- Chooses a QOS by account. It returns nothing for most jobs and logs an error for each job, but refuses no job.
qos_of = { vision = "high", nlp = "normal" }

slurm_job_submit = function(job_desc)
  local account = job_desc.account or job_desc.default_account
  slurm.log_error("slurm_job_submit: uid %d, account %s, node %s", job_desc.user_id, account, job_desc.alloc_node)
  if account == nil then
    slurm.user_msg("No account: 100% of jobs need one")
    return slurm.ESLURM_INVALID_ACCOUNT
  end
  if job_desc.qos == nil then
    job_desc.qos = qos_of[account:lower()] or ""
  end
end

slurm_job_modify = function() end
