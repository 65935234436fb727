//! Settings of the programs that use RDMA.

use super::{Step, Where, lines};
use crate::figures::{bytes, rate, time};
use crate::plan::Plan;
use crate::uses::UseCase;

/// Steps for the requested use; none without one.
pub(super) fn steps(plan: &Plan) -> Vec<Step> {
    match plan.request.use_case {
        None => Vec::new(),
        Some(UseCase::Storage) => {
            vec![spdk_target(plan), spdk_initiator(plan), nvme(plan), nfs(plan)]
        }
        Some(UseCase::Database) => vec![nvme(plan), nfs(plan), ucx(plan)],
        Some(UseCase::Migration) => vec![qemu(plan), libvirt()],
        Some(UseCase::Training) => vec![nccl(plan), ucx(plan)],
        Some(UseCase::Cps) => vec![ucx(plan)],
        Some(UseCase::Telescope) => vec![unreliable(plan)],
    }
}

/// SPDK's largest sensible values here: io_unit_size 8192 and 8192 shared buffers were used over
/// 1534 km (IOWN GF PoC report 2024-06, appendix D); max_queue_depth 128 is its default.
fn spdk_target(plan: &Plan) -> Step {
    let queues = plan.chosen.qps.clamp(1, 64);
    let in_flight = plan.bandwidth_delay_bytes;
    let unit = 8192.0;
    let buffers = (in_flight / unit).ceil().max(4095.0) as u64;
    let commands = lines![format!(
        "scripts/rpc.py nvmf_create_transport -t RDMA -q 128 -m {queues} -c 8192 -i 131072 -u \
         {unit} -n {buffers}"
    )];
    let why = format!(
        "a write above the in-capsule size (-c) costs a READ by the target: {} of a queue pair at \
         a time, so spread over {queues} (-m); buffers (-n) for {} in flight",
        plan.nic.outstanding_reads,
        bytes(in_flight)
    );
    Step::new(Where::Program, "SPDK NVMe-oF target", why, commands)
}

fn spdk_initiator(plan: &Plan) -> Step {
    let code = plan.timeouts.code;
    let queues = plan.chosen.qps.clamp(1, 64);
    let commands = lines![
        format!(
            "scripts/rpc.py bdev_nvme_set_options --transport-ack-timeout {code} \
             --transport-retry-count 7"
        ),
        "scripts/rpc.py bdev_nvme_attach_controller -b far -t RDMA -f ipv4 -a \"$PEER\" -s 4420 -n \
         nqn.2016-06.io.spdk:cnode1",
        format!(
            "fio --ioengine=spdk --thread=1 --rw=read --bs=131072 --iodepth=128 \
             --numjobs={queues} ..."
        ),
    ];
    let why =
        "the timeout is the same code as perftest's -u; set it before controllers are attached";
    Step::new(Where::Program, "SPDK NVMe-oF initiator", why, commands)
}

fn nvme(plan: &Plan) -> Step {
    let queues = plan.chosen.qps.clamp(1, 64);
    let commands = lines![format!(
        "sudo nvme connect -t rdma -a \"$PEER\" -s 4420 -n nqn.2016-06.io.spdk:cnode1 \
         --nr-io-queues={queues} --queue-size=128"
    )];
    let why = "Linux has one queue pair per I/O queue (at most one queue per processor); 128 is \
               its usual depth";
    Step::new(Where::Program, "NVMe-oF by the kernel", why, commands)
}

fn nfs(plan: &Plan) -> Step {
    // nconnect ends at 16 (NFS_MAX_CONNECTIONS).
    let connections = plan.chosen.qps.clamp(2, 16);
    let commands = lines![
        "echo 256 | sudo tee /proc/sys/sunrpc/rdma_slot_table_entries  # before mounting; \
         128 by default",
        format!(
            "sudo mount -t nfs -o \
             vers=4.2,proto=rdma,port=20049,nconnect={connections},rsize=1048576,wsize=1048576 \
             \"$PEER\":/export /mnt"
        ),
    ];
    let why = format!(
        "{connections} connections of up to 256 RPCs of 1 MiB; a write takes several round trips, \
         {} each",
        time(plan.rtt_ns)
    );
    Step::new(Where::Program, "NFS over RDMA", why, commands)
}

/// QEMU's own window: RDMA_SIGNALED_SEND_MAX 512 writes (migration/rdma.c); no setting changes it.
fn qemu(plan: &Plan) -> Step {
    let bytes_per_s = (plan.path.rate_bps / 8e6).floor();
    let commands = lines![
        "qemu-system-x86_64 ... -incoming rdma:0:4444                          # at the far side",
        "(qemu) migrate_set_capability rdma-pin-all on                        # at both sides, \
         before",
        format!("(qemu) migrate_set_parameter max-bandwidth {bytes_per_s}M"),
        "(qemu) migrate -d rdma:192.0.2.2:4444                                 # the far side's \
         address",
    ];
    let why =
        "pinned memory needs no registration per chunk, each of which would take a round trip";
    Step::new(Where::Program, "QEMU live migration", why, commands)
}

fn libvirt() -> Step {
    let commands = lines![
        "virsh migrate --live --rdma-pin-all --listen-address \"$PEER\" \
         --migrateuri rdma://\"$PEER\" vm1 qemu+tcp://\"$PEER\"/system --copy-storage-all",
    ];
    let why = "as over 380 km in the IOWN GF PoC report 2024-11, appendix F; the guest needs \
               <memtune><hard_limit>";
    Step::new(Where::Program, "libvirt", why, commands)
}

/// Channels to spread over: NCCL's default is 2 to 32.
const CHANNELS: f64 = 16.0;
/// NCCL_BUFFSIZE's default, and a bound so that all channels of all peers fit into a GPU's memory:
/// assumed.
const BUFFER_DEFAULT: u64 = 4 << 20;
const BUFFER_MOST: u64 = 64 << 20;
/// NCCL_IB_TIMEOUT's default since 2.23.
const NCCL_TIMEOUT_DEFAULT: u8 = 20;

fn nccl(plan: &Plan) -> Step {
    let each = (plan.bandwidth_delay_bytes / CHANNELS).max(1.0) as u64;
    let buffer = each.next_power_of_two().clamp(BUFFER_DEFAULT, BUFFER_MOST);
    let qps = plan.chosen.qps.clamp(1, 128);
    let channel = |buffer: u64| rate(buffer as f64 * 8e9 / plan.rtt_ns.max(1.0));
    let commands = lines![
        format!("export NCCL_IB_TIMEOUT={}", plan.timeouts.code.max(NCCL_TIMEOUT_DEFAULT)),
        "export NCCL_IB_RETRY_CNT=7",
        format!("export NCCL_IB_QPS_PER_CONNECTION={qps}"),
        format!("export NCCL_MIN_NCHANNELS={CHANNELS}"),
        format!("export NCCL_BUFFSIZE={buffer}"),
        format!("export NCCL_P2P_NET_CHUNKSIZE={}", (buffer / 8).max(131_072)),
        "export NCCL_IB_TC=106",
    ];
    let why = format!(
        "a channel has NCCL_BUFFSIZE in flight, 4 MiB by default: {} per channel at this distance, \
         {} with these",
        channel(BUFFER_DEFAULT),
        channel(buffer)
    );
    Step::new(Where::Program, "NCCL", why, commands)
}

/// UCX_RC_TIMEOUT's default is a second.
const UCX_TIMEOUT_DEFAULT_NS: f64 = 1e9;
/// UCX_RC_TX_QUEUE_LEN's default.
const UCX_QUEUE_DEFAULT: u32 = 256;

fn ucx(plan: &Plan) -> Step {
    let timeout_ms = (plan.timeouts.timeout_ns.max(UCX_TIMEOUT_DEFAULT_NS) / 1e6).ceil();
    let commands = lines![
        format!("export UCX_RC_TIMEOUT={timeout_ms}ms"),
        "export UCX_RC_RETRY_COUNT=7",
        format!("export UCX_RC_PATH_MTU={}", plan.path.mtu),
        format!("export UCX_RC_TX_QUEUE_LEN={}", plan.chosen.tx_depth.max(UCX_QUEUE_DEFAULT)),
        format!("export UCX_RC_MAX_RD_ATOMIC={}", plan.nic.outstanding_reads.min(16)),
        format!("export UCX_IB_NUM_PATHS={}", plan.chosen.qps.clamp(1, 16)),
        "export UCX_RNDV_SCHEME=put_zcopy",
    ];
    let why = "UCX allows 4 outstanding READs by default, and rendezvous by WRITE is not bound by \
               them at all";
    Step::new(Where::Program, "UCX", why, commands)
}

fn unreliable(plan: &Plan) -> Step {
    let run = format!(
        "ib_write_bw -c UC -d \"$DEV\" -s {} -m {} -D 10 --report_gbits -F",
        plan.chosen.size, plan.path.mtu
    );
    let commands =
        lines![format!("{run}             # receiver"), format!("{run} \"$PEER\"     # sender")];
    let why = "UC has no acknowledgements and so no window: the distance does not matter, and lost \
               messages are not repeated";
    Step::new(Where::Program, "Unreliable connections instead", why, commands)
}
