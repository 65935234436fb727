//! Recommended settings, as commands.
//!
//! Each command's source is in docs/spec/planner.md. Names of interfaces, devices and hosts are
//! shell variables that the first step sets, so that the rest can be pasted.

mod programs;

use crate::figures::{bytes, size, time};
use crate::plan::{Boxes, Plan};
use crate::wire::interface_mtu;
use serde::Serialize;

/// Place at which commands are run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Where {
    /// On both hosts.
    BothHosts,
    /// On the requester's host, except for lines that name the other.
    Hosts,
    /// On the switches of the sites.
    Switch,
    /// In the program that uses RDMA, or its configuration.
    Program,
    /// On boxes near the hosts.
    Boxes,
}

impl Where {
    /// Heading of the place.
    pub fn text(self) -> &'static str {
        match self {
            Where::BothHosts => "both hosts",
            Where::Hosts => "hosts",
            Where::Switch => "switches",
            Where::Program => "program",
            Where::Boxes => "boxes",
        }
    }
}

/// One thing to set.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Step {
    /// Where.
    pub place: Where,
    /// Short title.
    pub title: String,
    /// Reason, one sentence.
    pub why: String,
    /// The commands, one per line.
    pub commands: Vec<String>,
}

impl Step {
    fn new(place: Where, title: &str, why: impl Into<String>, commands: Vec<String>) -> Self {
        Step { place, title: title.to_owned(), why: why.into(), commands }
    }
}

/// Builds a list of commands from literals and formats.
macro_rules! lines {
    ($($line:expr),* $(,)?) => { vec![$($line.to_string()),*] };
}
pub(crate) use lines;

/// Everything to set, in order.
pub(crate) fn steps(plan: &Plan) -> Vec<Step> {
    let mut steps = vec![names(plan), interfaces(plan)];
    if plan.nic.is_connectx() {
        steps.extend(outstanding_wqes(plan));
        steps.push(adaptive_retransmission(plan));
        steps.push(classes());
    }
    steps.extend(switches(plan));
    steps.push(perftest(plan));
    steps.extend(programs::steps(plan));
    steps.extend(accelerators(plan));
    steps
}

fn is_rxe(plan: &Plan) -> bool {
    plan.nic.name == "rxe"
}

fn names(plan: &Plan) -> Step {
    let device = match plan.nic.name.as_str() {
        "rxe" => "rxe0",
        "longhaul" => "longhaul0",
        _ => "mlx5_0",
    };
    let peer = if device == "longhaul0" { "10.77.0.2" } else { "192.0.2.2" };
    let mut commands = lines![format!("IF=eth0 DEV={device} PEER={peer}")];
    if plan.nic.is_connectx() {
        commands.push(
            "PCI=$(basename \"$(readlink -f /sys/class/infiniband/$DEV/device)\")".to_owned(),
        );
    }
    Step::new(Where::BothHosts, "Names", "the commands below use these; put yours here", commands)
}

fn interfaces(plan: &Plan) -> Step {
    let mtu = interface_mtu(plan.path.mtu);
    let mut commands = Vec::new();
    if plan.path.mtu > 1024 {
        commands.push(format!("sudo ip link set dev \"$IF\" mtu {mtu}"));
    }
    if is_rxe(plan) {
        commands.extend(lines![
            "sudo modprobe rdma_rxe",
            "sudo rdma link add \"$DEV\" type rxe netdev \"$IF\""
        ]);
    } else if plan.nic.is_connectx() {
        commands.push("sudo ethtool -G \"$IF\" tx 8192 rx 8192".to_owned());
    }
    commands.push("ibv_devinfo -d \"$DEV\" | grep active_mtu".to_owned());
    let why = format!(
        "RDMA's path MTU of {} needs an interface MTU of {mtu} on every hop; ring sizes as in the \
         IOWN GF PoC report 2024-11",
        plan.path.mtu
    );
    Step::new(Where::BothHosts, "Interface", why, commands)
}

fn outstanding_wqes(plan: &Plan) -> Option<Step> {
    let log = plan.chosen.raised?.log_max_outstanding_wqe;
    let now = plan.nic.outstanding_wqes;
    let why = format!(
        "{} queue pair{} then {} enough, where {now} WQEs each take {}; takes effect after the \
         reset, which drops the link",
        plan.request.qps,
        if plan.request.qps == 1 { "" } else { "s" },
        if plan.request.qps == 1 { "is" } else { "are" },
        plan.chosen.qps
    );
    let commands = lines![
        format!("sudo mlxconfig -y -d \"$PCI\" set LOG_MAX_OUTSTANDING_WQE={log}"),
        "sudo mlxfwreset -y -d \"$PCI\" reset",
        "sudo mlxconfig -d \"$PCI\" query LOG_MAX_OUTSTANDING_WQE",
    ];
    Some(Step::new(Where::BothHosts, "Outstanding WQEs, or else more queue pairs", why, commands))
}

fn adaptive_retransmission(plan: &Plan) -> Step {
    let why = format!(
        "it begins at {} whatever the timeout code says, and repeats what is only late; not kept \
         over a reboot",
        time(plan.nic.adaptive_first_ns as f64)
    );
    let commands = lines![
        "sudo mlxreg -d \"$PCI\" --yes --reg_name ROCE_ACCL --set \"roce_adp_retrans_en=0x0\"",
        "sudo mlxreg -d \"$PCI\" --reg_name ROCE_ACCL --get | grep roce_adp_retrans_en",
    ];
    Step::new(Where::BothHosts, "Adaptive retransmission off", why, commands)
}

fn classes() -> Step {
    let commands = lines![
        "sudo mlnx_qos -i \"$IF\" --trust dscp --pfc 0,0,0,1,0,0,0,0",
        "sudo cma_roce_tos -d \"$DEV\" -t 106",
        "echo 106 | sudo tee /sys/class/infiniband/$DEV/tc/1/traffic_class",
    ];
    let why = "DSCP 26 and ECN-capable: priority 3, lossless toward the first switch alone";
    Step::new(Where::BothHosts, "Traffic class", why, commands)
}

/// Queue length at which a switch begins to mark, as a share of the bytes in flight, and its
/// bounds: assumed, from common practice for 100G (Kmin 150 kB within a site) up to the capacity of
/// a port.
const MARK_SHARE: f64 = 1.0 / 8.0;
const MARK_LEAST: f64 = 150_000.0;
const MARK_MOST: f64 = 2_000_000.0;

fn switches(plan: &Plan) -> [Step; 2] {
    let least = (plan.bandwidth_delay_bytes * MARK_SHARE).clamp(MARK_LEAST, MARK_MOST).round();
    let most = 4.0 * least;
    let why = format!(
        "mark early on the port toward the fibre; PFC within the site alone: across the fibre it \
         would need {} of headroom",
        bytes(plan.memory.pfc_headroom_bytes)
    );
    let cumulus = lines![
        "# ports toward the hosts: ECN and PFC on priority 3",
        "nv set qos roce mode lossless",
        format!("nv set qos congestion-control wan traffic-class 3 min-threshold-bytes {least}"),
        format!("nv set qos congestion-control wan traffic-class 3 max-threshold-bytes {most}"),
        "nv set qos congestion-control wan traffic-class 3 probability 10",
        "# swp1: toward the fibre",
        "nv set interface swp1 qos congestion-control profile wan",
        "nv config apply",
    ];
    let sonic = lines![
        format!("sudo config ecn -profile AZURE_LOSSLESS -gmin {least} -gmax {most}"),
        "# Ethernet0: toward the host, Ethernet124: toward the fibre",
        "sudo config interface pfc priority Ethernet0 3 on",
        "sudo config interface pfc priority Ethernet124 3 off",
    ];
    [
        Step::new(Where::Switch, "Marking and PFC, Cumulus", why.clone(), cumulus),
        Step::new(Where::Switch, "Marking and PFC, SONiC", why, sonic),
    ]
}

/// Windows per run: enough for the first and the last to be negligible.
const WINDOWS_PER_RUN: u32 = 20;

fn perftest(plan: &Plan) -> Step {
    let (op, chosen) = (plan.request.op, &plan.chosen);
    let prefix = if plan.nic.name == "longhaul" { "longhaul exec --host a -- " } else { "" };
    let reads = if op.is_answered() {
        format!(" -o {}", plan.nic.outstanding_reads.min(128))
    } else {
        String::new()
    };
    let length =
        if op == crate::Op::Atomic { String::new() } else { format!(" -s {}", chosen.size) };
    let arguments = |qps: u32, depth: u32| {
        format!(
            "ib_{op}_bw -d \"$DEV\" -q {qps} -t {}{length}{reads} -m {} -u {} -n {} \
             --report_gbits -F",
            depth,
            plan.path.mtu,
            plan.timeouts.code,
            depth.saturating_mul(WINDOWS_PER_RUN)
        )
    };
    let mut runs = vec![arguments(chosen.qps, chosen.tx_depth)];
    runs.extend(chosen.raised.map(|raised| arguments(plan.request.qps, raised.tx_depth)));
    let far = prefix.replace("host a", "host b");
    let mut commands = Vec::new();
    for (index, run) in runs.iter().enumerate() {
        let with = if index > 0 { ", with the raised LOG_MAX_OUTSTANDING_WQE" } else { "" };
        commands.extend(lines![
            format!("# responder, then requester{with}:"),
            format!("{far}{run}"),
            format!("{prefix}{run} \"$PEER\"")
        ]);
    }
    let why = format!(
        "{} of {}; -n is whole windows, because a started one takes as long as a full one",
        match op {
            crate::Op::Atomic => "atomics".to_owned(),
            op => format!("{}s", op.name().to_uppercase()),
        },
        size(chosen.size)
    );
    Step::new(Where::Hosts, "Measure (perftest)", why, commands)
}

fn accelerators(plan: &Plan) -> Option<Step> {
    let boxes = plan.boxes?;
    let gbps = plan.path.rate_bps / 1e9;
    let delay_us = plan.path.one_way_ns / 1e3;
    let store = bytes(plan.memory.box_bytes());
    let (title, why) = match boxes {
        Boxes::Accelerators => (
            "Accelerators",
            format!(
                "acknowledge near the requester, so that the window need not span the path; store \
                 of {store} per box"
            ),
        ),
        Boxes::Transport => (
            "Accelerators with a transport",
            format!(
                "acknowledge near the requester, and repair loss on the path, for which \
                 accelerators alone go back a round trip; store of {store} per box"
            ),
        ),
    };
    let (transport, lab) = match boxes {
        Boxes::Accelerators => ("", ""),
        Boxes::Transport => (" --transport", " transport"),
    };
    let loss =
        if plan.path.loss > 0.0 { format!(" --loss {:e}", plan.path.loss) } else { String::new() };
    let km = (delay_us / 5.0).ceil();
    // A box's default store is 1 GiB; a host may run four round trips ahead.
    let gib = (4.0 * plan.bandwidth_delay_bytes / f64::from(1 << 30)).ceil();
    let memory = if gib > 1.0 { format!(" --memory {gib}G") } else { String::new() };
    let commands = lines![
        "# a box at each site, between the host and the long path:",
        format!(
            "longhaul accelerate --lan eth1 --wan eth2 --rate {gbps}G --distance \
             {km}km{transport}{memory}"
        ),
        "# or try it on one machine first:",
        format!("longhaul lab up --distance {km}km --rate 10G{loss} --accelerate{lab}"),
    ];
    Some(Step::new(Where::Boxes, title, why, commands))
}
