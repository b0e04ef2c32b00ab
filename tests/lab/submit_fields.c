/*
 * Submits a batch job for each line of standard input, with Slurm's own library: sbatch fills in fields that other
 * clients, such as slurmrestd, leave unset.
 * A line has "FIELD=VALUE ..." with names of job_desc_msg_t. Prints a line for each: the job's ID, or "0 REASON".
 */
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <slurm/slurm.h>
#include <slurm/slurm_errno.h>

#if SLURM_VERSION_NUMBER >= SLURM_VERSION_NUM(26, 5, 0)
#define JOB_ID(response) ((response)->step_id.job_id)
#else
#define JOB_ID(response) ((response)->job_id)
#endif

#define FIELD(name) { #name, offsetof(job_desc_msg_t, name), sizeof(((job_desc_msg_t *)0)->name) }

static const struct { const char *name; size_t at, size; } numbers[] = {
	FIELD(min_nodes), FIELD(max_nodes), FIELD(min_cpus), FIELD(max_cpus), FIELD(num_tasks), FIELD(cpus_per_task),
	FIELD(ntasks_per_node), FIELD(ntasks_per_socket), FIELD(ntasks_per_core), FIELD(ntasks_per_board),
	FIELD(ntasks_per_tres), FIELD(sockets_per_node), FIELD(cores_per_socket), FIELD(threads_per_core),
	FIELD(sockets_per_board), FIELD(boards_per_node), FIELD(pn_min_cpus), FIELD(pn_min_memory), FIELD(core_spec),
	FIELD(shared), FIELD(contiguous), FIELD(bitflags), FIELD(plane_size), FIELD(overcommit), FIELD(time_limit),
}, texts[] = {
	FIELD(req_nodes), FIELD(exc_nodes), FIELD(features), FIELD(prefer), FIELD(tres_per_job), FIELD(tres_per_node),
	FIELD(tres_per_socket), FIELD(tres_per_task), FIELD(cpus_per_tres), FIELD(mem_per_tres), FIELD(array_inx),
	FIELD(partition), FIELD(licenses),
};

/* Returns whether the job has such a field. */
static int set(job_desc_msg_t *job, const char *name, char *value)
{
	for (size_t i = 0; i < sizeof(texts) / sizeof(*texts); i++)
		if (!strcmp(name, texts[i].name)) {
			memcpy((char *)job + texts[i].at, &value, sizeof(value));
			return 1;
		}
	for (size_t i = 0; i < sizeof(numbers) / sizeof(*numbers); i++)
		if (!strcmp(name, numbers[i].name)) {
			uint64_t number = strtoull(value, NULL, 0);
			memcpy((char *)job + numbers[i].at, &number, numbers[i].size); /* little-endian */
			return 1;
		}
	return 0;
}

int main(void)
{
	char line[4096], *environment[] = { "PATH=/usr/bin:/bin", NULL }, *arguments[] = { "job.sh" };

	slurm_init(NULL);
	while (fgets(line, sizeof(line), stdin)) {
		job_desc_msg_t job;
		submit_response_msg_t *response = NULL;

		slurm_init_job_desc_msg(&job);
		job.name = "fields";
		job.script = "#!/bin/sh\nexit 0\n";
		job.argc = 1;
		job.argv = arguments;
		job.environment = environment;
		job.env_size = 1;
		job.work_dir = "/tmp";
		job.std_out = job.std_err = "/dev/null";
		job.user_id = getuid();
		job.group_id = getgid();
		job.time_limit = 10;
		for (char *word = strtok(line, " \n"); word; word = strtok(NULL, " \n")) {
			char *value = strchr(word, '=');
			if (!value || (*value++ = 0, !set(&job, word, value))) {
				fprintf(stderr, "submit_fields: no field %s\n", word);
				return 2;
			}
		}
		if (slurm_submit_batch_job(&job, &response) == SLURM_SUCCESS)
			printf("%u\n", JOB_ID(response));
		else
			printf("0 %s\n", slurm_strerror(errno));
		slurm_free_submit_response_response_msg(response);
	}
	return 0;
}
