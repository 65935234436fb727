//! A plan for a path: predictions over message sizes, requirements of a target, and settings.

use crate::accelerator::Accelerator;
use crate::advice::{self, Step};
use crate::figures::{bytes, rate, size, time};
use crate::memory::Memory;
use crate::needs::{Needs, Raised, Reach};
use crate::nic::NicProfile;
use crate::path::Path;
use crate::predict::{Limit, Prediction};
use crate::timeout::Timeouts;
use crate::uses::UseCase;
use crate::workload::{Op, Workload};
use crate::{Invalid, wire};
use serde::Serialize;

/// Input of a plan.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Request {
    /// Operation.
    pub op: Op,
    /// Message sizes in bytes, at least one, ascending.
    pub sizes: Vec<u64>,
    /// Queue pairs that the program has.
    pub qps: u32,
    /// Messages that the program keeps posted on each.
    pub tx_depth: u32,
    /// Messages per completion; `None`: perftest's default.
    pub cq_mod: Option<u32>,
    /// Messages per queue pair in total; `None`: unlimited.
    pub iterations: Option<u64>,
    /// Target goodput in bits per second; `None`: 90 % of the ceiling.
    pub target_bps: Option<f64>,
    /// Use of the path, which selects the programs whose settings are listed.
    pub use_case: Option<UseCase>,
    /// The accelerator to consider.
    pub accelerator: Accelerator,
}

impl Request {
    /// Default target, as a share of the ceiling.
    const TARGET_SHARE: f64 = 0.9;

    /// The workload for one size.
    pub fn workload(&self, size: u64) -> Workload {
        let size = if self.op == Op::Atomic { 8 } else { size };
        let perftest = Workload::perftest(self.op, size, self.qps, self.tx_depth);
        Workload {
            cq_mod: self.cq_mod.unwrap_or(perftest.cq_mod),
            iterations: self.iterations,
            ..perftest
        }
    }
}

/// The published formula: QD = RTT x line speed / total frame size (NTT Technical Review 2024,
/// 4.1).
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct QueueDepth {
    /// Outstanding messages of one packet each.
    pub messages: f64,
    /// The formula's total frame size: a packet with headers, FCS, preamble and gap.
    pub frame_bytes: f64,
    /// Effects that the formula ignores and that matter here.
    pub misses: Vec<String>,
}

impl QueueDepth {
    /// Overhead of a middle packet in bytes: 4178 on the wire for a payload of 4096.
    const OVERHEAD: u32 = 82;

    /// The formula for `path`, with the effects that it ignores.
    pub fn new(path: &Path, nic: &NicProfile, request: &Request) -> Self {
        let frame_bytes = f64::from(path.mtu + Self::OVERHEAD);
        let messages = path.bandwidth_delay_bytes() / frame_bytes;
        let mut misses = Vec::new();
        let work = request.workload(u64::from(path.mtu));
        if work.cq_mod > 1 {
            let window = crate::window::Window::new(work.tx_depth.into(), work.cq_mod.into());
            if window.per_turn < work.tx_depth.into() {
                misses.push(format!(
                    "completions for each {}th message: of {} posted, {} move per round trip",
                    work.cq_mod, work.tx_depth, window.per_turn
                ));
            }
        }
        let (op, reads) = (request.op, nic.outstanding_reads);
        if op.is_answered() && f64::from(reads) < messages {
            misses.push(format!(
                "the NIC leaves {reads} READs of a queue pair unanswered, however deep the queue"
            ));
        } else if f64::from(nic.outstanding_wqes) < messages {
            let wqes = nic.outstanding_wqes;
            misses.push(format!(
                "the NIC leaves {wqes} WQEs of a queue pair unacknowledged, however deep the queue"
            ));
        }
        if f64::from(nic.outstanding_psns) < messages {
            let psns = nic.outstanding_psns;
            misses.push(format!(
                "the NIC leaves {psns} packets of a queue pair unacknowledged: large messages do \
                 not help"
            ));
        }
        misses.push(format!(
            "a turn takes the round trip and {} for acknowledgement, completion and posting, and \
             the message itself",
            time(nic.program_turn_ns())
        ));
        if path.loss > 0.0 {
            misses.push("loss: each lost packet costs a whole window more".to_owned());
        }
        QueueDepth { messages, frame_bytes, misses }
    }
}

/// One message size.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Row {
    /// Bytes.
    pub size: u64,
    /// Without an accelerator.
    pub prediction: Prediction,
    /// Requirements of the target.
    pub needs: Needs,
    /// With accelerators alone, everything else unchanged.
    pub accelerated: Prediction,
    /// With a transport between the accelerators.
    pub transport: Prediction,
}

/// Boxes that raise a path's goodput.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Boxes {
    /// Accelerators alone.
    Accelerators,
    /// Accelerators with a transport between them.
    Transport,
}

/// The settings that the commands apply.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Chosen {
    /// The smallest size that reaches the target with settings, or the largest of all.
    pub size: u64,
    /// Queue pairs.
    pub qps: u32,
    /// Depth of each.
    pub tx_depth: u32,
    /// The alternative with the program's own queue pairs.
    pub raised: Option<Raised>,
    /// The target is reached at this size.
    pub reaches: bool,
}

/// The complete plan for a path.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Plan {
    /// As given.
    pub path: Path,
    /// As given.
    pub nic: NicProfile,
    /// As given.
    pub request: Request,
    /// Round trip in nanoseconds.
    pub rtt_ns: f64,
    /// Bandwidth-delay product in bytes.
    pub bandwidth_delay_bytes: f64,
    /// The published formula.
    pub queue_depth: QueueDepth,
    /// Timer settings.
    pub timeouts: Timeouts,
    /// A row per size.
    pub rows: Vec<Row>,
    /// The settings that the commands apply.
    pub chosen: Chosen,
    /// Boxes that help; `None`: none do.
    pub boxes: Option<Boxes>,
    /// Memory of the chosen settings.
    pub memory: Memory,
    /// Settings to apply, in order.
    pub steps: Vec<Step>,
    /// Warnings: what will fail, or is impossible.
    pub warnings: Vec<String>,
}

impl Plan {
    /// Plans `request` over `path` between two NICs `nic`.
    ///
    /// # Errors
    ///
    /// A value is out of range, or there is no size.
    pub fn new(path: &Path, nic: &NicProfile, request: &Request) -> Result<Self, Invalid> {
        if request.sizes.is_empty() {
            return Err(Invalid::new("message sizes", 0, "at least one"));
        }
        if request.target_bps.is_some_and(|target| !(1.0..=1e15).contains(&target)) {
            return Err(Invalid::new(
                "target",
                request.target_bps.unwrap_or(0.0),
                "1 bit/s to 1 Pbit/s",
            ));
        }
        let rows = request
            .sizes
            .iter()
            .map(|&size| row(path, nic, request, size))
            .collect::<Result<Vec<_>, _>>()?;
        let timeouts = Timeouts::new(path, nic);
        let boxes = boxes(&rows);
        let chosen = choose(&rows, request);
        let workload = Workload {
            qps: chosen.qps,
            tx_depth: chosen.tx_depth,
            cq_mod: request.workload(chosen.size).cq_mod.min(chosen.tx_depth),
            ..request.workload(chosen.size)
        };
        let mut plan = Plan {
            path: *path,
            nic: nic.clone(),
            request: request.clone(),
            rtt_ns: path.rtt_ns(),
            bandwidth_delay_bytes: path.bandwidth_delay_bytes(),
            queue_depth: QueueDepth::new(path, nic, request),
            timeouts,
            rows,
            chosen,
            boxes,
            memory: Memory::new(path, nic, &workload, &request.accelerator),
            steps: Vec::new(),
            warnings: Vec::new(),
        };
        plan.steps = advice::steps(&plan);
        plan.warnings = warnings(&plan);
        Ok(plan)
    }

    /// The row of the highest goodput without boxes.
    pub fn best(&self) -> &Row {
        let goodput = |row: &&Row| row.prediction.goodput_bps;
        let rows = self.rows.iter();
        rows.reduce(|best, row| if goodput(&row) > goodput(&best) { row } else { best })
            .unwrap_or(&self.rows[0])
    }
}

fn row(path: &Path, nic: &NicProfile, request: &Request, size: u64) -> Result<Row, Invalid> {
    let workload = request.workload(size);
    let prediction = Prediction::new(path, nic, &workload)?;
    let target = request.target_bps.unwrap_or(Request::TARGET_SHARE * prediction.ceiling_bps);
    let endless = Workload { iterations: None, ..workload };
    let needs = Needs::new(path, nic, &endless, target, &request.accelerator)?;
    let accelerated = request.accelerator.predict(path, nic, &workload)?;
    let transport = request.accelerator.predict_transport(path, nic, &workload)?;
    Ok(Row { size: workload.size, prediction, needs, accelerated, transport })
}

/// Boxes help if they are the only means to reach the target, or gain a tenth; a transport is for
/// paths on which accelerators alone lose a tenth of what it gains.
fn boxes(rows: &[Row]) -> Option<Boxes> {
    const GAIN: f64 = 1.1;
    let gains = |row: &Row, with: &Prediction| {
        with.goodput_bps > GAIN * row.prediction.goodput_bps
            || (row.needs.reach == Reach::Accelerator
                && with.goodput_bps > row.prediction.goodput_bps)
    };
    let needs_transport = |row: &Row| {
        gains(row, &row.transport) && row.transport.goodput_bps > GAIN * row.accelerated.goodput_bps
    };
    if rows.iter().any(needs_transport) {
        Some(Boxes::Transport)
    } else {
        rows.iter().any(|row| gains(row, &row.accelerated)).then_some(Boxes::Accelerators)
    }
}

fn choose(rows: &[Row], request: &Request) -> Chosen {
    let reached = rows.iter().find(|row| matches!(row.needs.reach, Reach::Now | Reach::Settings));
    let row = reached.unwrap_or(&rows[rows.len() - 1]);
    let needs = &row.needs;
    let as_is = needs.reach == Reach::Now || (reached.is_none() && needs.qps.is_none());
    Chosen {
        size: row.size,
        qps: if as_is { request.qps } else { needs.qps.unwrap_or(request.qps) },
        tx_depth: if as_is { request.tx_depth } else { needs.tx_depth },
        raised: if as_is { None } else { needs.raised },
        reaches: reached.is_some(),
    }
}

fn warnings(plan: &Plan) -> Vec<String> {
    let mut warnings = Vec::new();
    warn_of_sizes(plan, &mut warnings);
    warn_of_timers(plan, &mut warnings);
    warn_of_path(plan, &mut warnings);
    warnings
}

fn warn_of_sizes(plan: &Plan, warnings: &mut Vec<String>) {
    let sizes = |reach| {
        let of: Vec<u64> =
            plan.rows.iter().filter(|r| r.needs.reach == reach).map(|r| r.size).collect();
        Some((*of.first()?, *of.last()?))
    };
    if let Some(range) = sizes(Reach::Accelerator) {
        warnings.push(format!(
            "no setting reaches the target at {}: more than {} queue pairs or {} WQEs each would \
             be needed. An accelerator does{}: it acknowledges near the requester, so that the \
             window need not span the path",
            between(range),
            Needs::QPS_MAX,
            Needs::TX_DEPTH_MAX,
            if plan.request.op.is_answered() {
                String::new()
            } else {
                format!(
                    ", with {} queue pairs of depth {} at most",
                    plan.request.qps.max(Needs::BOX_QPS),
                    plan.request.tx_depth.max(Needs::BOX_TX_DEPTH)
                )
            }
        ));
    }
    if let Some(range) = sizes(Reach::Never) {
        let closest = plan.rows.iter().find(|row| row.needs.reach == Reach::Never);
        let why = closest.map_or("", |row| never(plan, row));
        warnings.push(format!("nothing reaches the target at {}: {why}", between(range)));
    }
    let hit = plan.rows.iter().filter(|row| row.prediction.limit == Limit::Loss);
    if let Some(row) =
        hit.min_by(|a, b| a.prediction.loss_factor.total_cmp(&b.prediction.loss_factor))
    {
        let (factor, loss) = (row.prediction.loss_factor, plan.path.loss);
        let cure = if plan.request.op.is_answered() {
            "boxes with a transport repair it; more queue pairs share the cost, because a loss \
             holds up only its own"
        } else {
            "boxes with a transport repair it, and accelerators alone go back as far; more queue \
             pairs share the cost, because a loss holds up only its own"
        };
        warnings.push(format!(
            "loss of {loss:e} takes {:.0} % of the goodput at {}: with go-back-N a lost packet \
             costs {:.0} more. Find its cause first; {cure}",
            100.0 * (1.0 - factor),
            size(row.size),
            (1.0 / factor - 1.0) / loss,
        ));
    }
}

/// Returns the reason why no setting helps.
fn never(plan: &Plan, row: &Row) -> &'static str {
    let hard = row
        .prediction
        .bounds
        .iter()
        .find(|bound| !bound.limit.is_window() && bound.goodput_bps < row.needs.target_bps);
    match hard.map(|bound| bound.limit) {
        Some(Limit::LineRate) => {
            "headers alone leave less of the line rate; larger messages, or a larger MTU"
        }
        Some(Limit::PacketRate) => {
            "the NIC sends too few packets per second; a larger MTU, or another NIC"
        }
        Some(Limit::MessageRate) => "the NIC begins too few messages per second; larger messages",
        Some(Limit::Program) => {
            "one program posts too few messages per second; larger messages, or several programs"
        }
        _ if plan.request.op.is_answered() => {
            "an accelerator does not shorten a READ's round trip; larger messages, or let the \
             other side WRITE"
        }
        _ => "larger messages are needed",
    }
}

fn warn_of_timers(plan: &Plan, warnings: &mut Vec<String>) {
    let (timeouts, rtt) = (&plan.timeouts, time(plan.rtt_ns));
    if plan.rows.iter().any(|row| row.prediction.limit == Limit::Retries) {
        warnings.push(format!(
            "the profile's retries are over before an answer can be back ({rtt}): connections \
             end with 'transport retry counter exceeded'. Set the timeout code to {}",
            timeouts.code
        ));
    } else if timeouts.is_too_short {
        warnings.push(format!(
            "the profile's first timeout of {} is over before an answer is back ({rtt}): \
             everything is sent again needlessly. Set the timeout code to {}{}",
            time(timeouts.nic_timeout_ns.unwrap_or(0.0)),
            timeouts.code,
            if plan.nic.adaptive_retransmission {
                " and turn adaptive retransmission off"
            } else {
                ""
            }
        ));
    }
    if plan.nic.is_connectx()
        && !plan.nic.adaptive_retransmission
        && plan.rtt_ns > plan.nic.adaptive_first_ns as f64
    {
        warnings.push(format!(
            "adaptive retransmission is on by default in this family and begins at {} whatever the \
             timeout code says: turn it off, or expect needless retransmission at {rtt}",
            time(plan.nic.adaptive_first_ns as f64)
        ));
    }
}

fn warn_of_path(plan: &Plan, warnings: &mut Vec<String>) {
    let queue = plan.rows.iter().map(|r| r.prediction.in_flight_bytes).fold(0.0, f64::max);
    if plan.nic.rate_bps as f64 > plan.path.rate_bps && queue > 0.0 {
        warnings.push(format!(
            "the NIC's port is faster than the path ({} against {}): bursts of a whole window \
             queue in front of the path; limit the rate at the NIC, or give the queue {}",
            rate(plan.nic.rate_bps as f64),
            rate(plan.path.rate_bps),
            bytes(queue)
        ));
    }
    if plan.memory.pfc_headroom_bytes > SWITCH_BUFFER_BYTES {
        warnings.push(format!(
            "PFC cannot keep this path free of drops: a switch would need {} of headroom per port \
             and priority, and has some tens of megabytes in all. Use ECN, and PFC within the \
             sites alone",
            bytes(plan.memory.pfc_headroom_bytes)
        ));
    }
    let efficiency = f64::from(plan.path.mtu) / f64::from(plan.path.mtu + QueueDepth::OVERHEAD);
    if plan.path.mtu < 4096 {
        warnings.push(format!(
            "a path MTU of {} leaves {:.1} % of the line rate for payload; 4096, with interfaces \
             at {}, leaves 98.0 %",
            plan.path.mtu,
            100.0 * efficiency,
            wire::interface_mtu(4096)
        ));
    }
}

/// Shared buffer of a data-centre switch: 16 MB in an SN2010, 64 MB in a Spectrum-3 (NVIDIA's data
/// sheets); a port gets part of it.
const SWITCH_BUFFER_BYTES: f64 = 16e6;

fn between((least, most): (u64, u64)) -> String {
    if least == most { size(least) } else { format!("{} to {}", size(least), size(most)) }
}
