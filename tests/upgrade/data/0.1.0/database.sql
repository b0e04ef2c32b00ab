BEGIN TRANSACTION;
CREATE TABLE alembic_version (
	version_num VARCHAR(32) NOT NULL, 
	CONSTRAINT alembic_version_pkc PRIMARY KEY (version_num)
);
INSERT INTO "alembic_version" VALUES('0004');
CREATE TABLE "device" (
	uuid VARCHAR(255) NOT NULL, 
	node VARCHAR(255) NOT NULL, 
	at_s BIGINT NOT NULL, 
	name VARCHAR(255), 
	minor BIGINT, 
	"index" BIGINT, 
	parent VARCHAR(255), 
	gpu_instance BIGINT, 
	compute_instance BIGINT, 
	memory_mib DOUBLE, 
	power_limit_w DOUBLE, 
	sm_clock_max_mhz DOUBLE, 
	pcie_bytes_per_s DOUBLE, 
	nvlink_bytes_per_s DOUBLE, 
	pci_bus_id VARCHAR(255), 
	driver VARCHAR(255), 
	PRIMARY KEY (node, uuid)
);
INSERT INTO "device" VALUES('GPU-0','n1',1780000000,'NVIDIA A100',0,0,NULL,NULL,NULL,40960.0,NULL,NULL,NULL,NULL,NULL,NULL);
CREATE TABLE event (
	node VARCHAR(255) NOT NULL, 
	boot_id VARCHAR(255) NOT NULL, 
	n BIGINT NOT NULL, 
	at_s BIGINT NOT NULL, 
	kind VARCHAR(255) NOT NULL, 
	device VARCHAR(255), 
	job_id BIGINT, 
	data TEXT NOT NULL, 
	PRIMARY KEY (node, boot_id, n)
);
INSERT INTO "event" VALUES('n1','boot-1',1,1780000000,'xid','GPU-0',NULL,'{"code":79}');
CREATE TABLE node_period (
	node VARCHAR(255) NOT NULL, 
	from_s BIGINT NOT NULL, 
	server_type VARCHAR(255), 
	zone VARCHAR(255), 
	gpus INTEGER NOT NULL, 
	cpus INTEGER NOT NULL, 
	memory_mib BIGINT NOT NULL, 
	state VARCHAR(255) NOT NULL, 
	PRIMARY KEY (node, from_s)
);
CREATE TABLE run (
	run_id INTEGER NOT NULL, 
	cluster VARCHAR(255) NOT NULL, 
	job_id BIGINT NOT NULL, 
	submit_s BIGINT NOT NULL, 
	sluid VARCHAR(64), 
	restart INTEGER, 
	array_job_id BIGINT, 
	array_task BIGINT, 
	het_job_id BIGINT, 
	het_offset INTEGER, 
	name TEXT NOT NULL, 
	user VARCHAR(255) NOT NULL, 
	uid BIGINT, 
	account VARCHAR(255) NOT NULL, 
	qos VARCHAR(255) NOT NULL, 
	partition TEXT NOT NULL, 
	state VARCHAR(32) NOT NULL, 
	exit_code VARCHAR(32) NOT NULL, 
	eligible_s BIGINT, 
	start_s BIGINT, 
	end_s BIGINT, 
	elapsed_s BIGINT NOT NULL, 
	suspended_s BIGINT NOT NULL, 
	time_limit_s BIGINT, 
	n_nodes INTEGER NOT NULL, 
	nodes TEXT NOT NULL, 
	tres_requested TEXT NOT NULL, 
	tres_allocated TEXT NOT NULL, 
	admin_comment TEXT NOT NULL, 
	allocated_mgpu BIGINT, 
	gpu_type VARCHAR(255), 
	first_submit_s BIGINT, 
	granted_mgpu BIGINT, 
	ugpucore DOUBLE, 
	ugpumem DOUBLE, 
	coverage DOUBLE, 
	energy_j DOUBLE, 
	derive_due BOOLEAN NOT NULL, app VARCHAR(255), app_field VARCHAR(255), told_seq BIGINT, 
	PRIMARY KEY (run_id), 
	CONSTRAINT run_key UNIQUE (cluster, job_id, submit_s)
);
CREATE TABLE run_device (
	segment VARCHAR(16) NOT NULL, 
	device VARCHAR(255) NOT NULL, 
	run_id BIGINT, 
	match_due BOOLEAN NOT NULL, 
	cluster VARCHAR(255) NOT NULL, 
	job_id BIGINT NOT NULL, 
	restart BIGINT NOT NULL, 
	prolog_s BIGINT NOT NULL, 
	node VARCHAR(255) NOT NULL, 
	boot_id VARCHAR(255) NOT NULL, 
	seq BIGINT NOT NULL, 
	final BOOLEAN NOT NULL, 
	first_s BIGINT NOT NULL, 
	last_s BIGINT NOT NULL, 
	held_s DOUBLE NOT NULL, 
	sampled_s DOUBLE NOT NULL, 
	no_process_s DOUBLE, 
	suspended_s DOUBLE, 
	granted_mgpu BIGINT, 
	util_hist_ms TEXT, 
	mem_hist_ms TEXT, 
	statistics TEXT NOT NULL, timeline TEXT, 
	PRIMARY KEY (segment, device)
);
INSERT INTO "run_device" VALUES('0000000000000001','GPU-0',NULL,1,'lab',1,0,1780000000,'n1','boot-1',9,1,1780000000,1780000100,100.0,90.0,10.0,0.0,1000,'{"0":40000,"100":50000}','{"25":90000}','{"uptime_s":5000.0,"device_util_pct":[90.0,50.0,0.0,100.0],"mem_used_frac":[90.0,0.25,0.25,0.25],"power_w":[90.0,50.0,0.0,100.0],"energy_j":[90.0,4500.0],"throttle_s":{"sw_power_cap":1.5}}','{"width_s":64,"start_s":1780000000,"series":{"util":"ffo="}}');
CREATE TABLE run_host (
	segment VARCHAR(16) NOT NULL, 
	run_id BIGINT, 
	match_due BOOLEAN NOT NULL, 
	cluster VARCHAR(255) NOT NULL, 
	job_id BIGINT NOT NULL, 
	restart BIGINT NOT NULL, 
	prolog_s BIGINT NOT NULL, 
	node VARCHAR(255) NOT NULL, 
	boot_id VARCHAR(255) NOT NULL, 
	seq BIGINT NOT NULL, 
	final BOOLEAN NOT NULL, 
	first_s BIGINT NOT NULL, 
	last_s BIGINT NOT NULL, 
	cpu_s DOUBLE, 
	rss_max_mib DOUBLE, 
	read_bytes BIGINT, 
	write_bytes BIGINT, 
	net_rx_bytes BIGINT, 
	net_tx_bytes BIGINT, 
	ib_rx_bytes BIGINT, 
	ib_tx_bytes BIGINT, 
	app VARCHAR(255), 
	app_field VARCHAR(255), 
	app_params TEXT, 
	container BOOLEAN, uptime_s DOUBLE, 
	PRIMARY KEY (segment)
);
INSERT INTO "run_host" VALUES('0000000000000001',NULL,1,'lab',1,0,1780000000,'n1','boot-1',9,1,1780000000,1780000100,12.5,NULL,NULL,NULL,NULL,NULL,NULL,NULL,'PyTorch',NULL,'{"model":"resnet"}',NULL,5000.0);
CREATE TABLE run_window (
	segment VARCHAR(16) NOT NULL, 
	device VARCHAR(255) NOT NULL, 
	node VARCHAR(255) NOT NULL, 
	job_id BIGINT NOT NULL, 
	at_s BIGINT NOT NULL, 
	start_s DOUBLE NOT NULL, 
	width_s DOUBLE NOT NULL, 
	series TEXT NOT NULL, 
	PRIMARY KEY (segment, device)
);
INSERT INTO "run_window" VALUES('0000000000000001','GPU-0','n1',1,1780000000,1780000000.0,1.0,'{"util_pct":"AABIQg=="}');
CREATE TABLE watermark (
	name VARCHAR(255) NOT NULL, 
	value_s BIGINT NOT NULL, 
	PRIMARY KEY (name)
);
CREATE INDEX run_account_newest ON run (account, submit_s, run_id);
CREATE INDEX run_array ON run (array_job_id);
CREATE INDEX run_derive_due ON run (derive_due);
CREATE INDEX run_end ON run (end_s);
CREATE INDEX run_het ON run (het_job_id);
CREATE INDEX run_newest ON run (submit_s, run_id);
CREATE INDEX run_state_newest ON run (state, submit_s, run_id);
CREATE INDEX run_user_newest ON run (user, submit_s, run_id);
CREATE INDEX run_device_job ON run_device (cluster, job_id);
CREATE INDEX run_device_match_due ON run_device (match_due);
CREATE INDEX run_device_run ON run_device (run_id);
CREATE INDEX event_at ON event (at_s);
CREATE INDEX event_job ON event (job_id);
CREATE INDEX run_device_last ON run_device (last_s);
CREATE INDEX event_device_at ON event (device, at_s);
CREATE INDEX run_host_job ON run_host (cluster, job_id);
CREATE INDEX run_host_match_due ON run_host (match_due);
CREATE INDEX run_host_run ON run_host (run_id);
CREATE INDEX run_window_at ON run_window (at_s);
CREATE INDEX run_window_job ON run_window (job_id);
CREATE INDEX device_node ON device (node, at_s);
COMMIT;
