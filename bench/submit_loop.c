/*
 * Submits COUNT batch jobs one after another with Slurm's own library: sbatch starts too slowly to measure slurmctld.
 * usage: submit_loop COUNT BEGIN_EPOCH NAME [varied]
 * With a fourth word each job has a time limit of its own.
 * Prints "STARTED_S ENDED_S ACCEPTED", on the clock that all processes of the host share.
 */
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

#include <slurm/slurm.h>
#include <slurm/slurm_errno.h>

static double now_s(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec + t.tv_nsec / 1e9;
}

int main(int argc, char **argv)
{
	char *environment[] = { "PATH=/usr/bin:/bin", NULL };
	char *arguments[] = { "job.sh" };
	long accepted = 0, count;
	double start;

	if (argc != 4 && argc != 5)
		return 2;
	count = atol(argv[1]);
	slurm_init(NULL);
	start = now_s();
	for (long i = 0; i < count; i++) {
		job_desc_msg_t job;
		submit_response_msg_t *response = NULL;

		slurm_init_job_desc_msg(&job);
		job.name = argv[3];
		job.script = "#!/bin/sh\nexit 0\n";
		job.argc = 1;
		job.argv = arguments;
		job.environment = environment;
		job.env_size = 1;
		job.work_dir = "/tmp";
		job.std_out = "/dev/null";
		job.std_err = "/dev/null";
		job.user_id = getuid();
		job.group_id = getgid();
		job.min_nodes = 1;
		job.time_limit = argc == 5 ? 10 + i : 10;
		job.tres_per_node = "gres:gpu:1";
		job.begin_time = atol(argv[2]);
		if (slurm_submit_batch_job(&job, &response) == SLURM_SUCCESS)
			accepted++;
		else if (i == 0)
			slurm_perror("submit_loop");
		slurm_free_submit_response_response_msg(response);
	}
	printf("%.6f %.6f %ld\n", start, now_s(), accepted);
	return 0;
}
