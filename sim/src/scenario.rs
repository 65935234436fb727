//! Scenarios: stations, cables and programs.

use crate::host::{Migration, Op, Storage};
use crate::profile::NicProfile;
use longhaul_link::LinkConfig;
use longhaul_rnic::Mtu;
use longhaul_units::{BitRate, Duration};

/// A network and its flows.
#[derive(Clone, Debug, Default)]
pub struct Scenario {
    /// Seed of all randomness.
    pub seed: u64,
    /// The stations. Cables and flows refer to them by index.
    pub stations: Vec<StationPlan>,
    /// The cables between them.
    pub cables: Vec<Cable>,
    /// The programs.
    pub flows: Vec<Flow>,
    /// Maximum packets per train, 1 to 1024: packets that are processed as one event if that cannot
    /// change the outcome. Trains occur between two hosts on a cable without marks, gaps and
    /// recording.
    pub train_packets_max: u32,
    /// Virtual time limit of the run.
    pub time_max: Option<Duration>,
    /// Virtual time before which flows that end at a time do not count: neither their messages nor
    /// the processor time of their programs.
    pub warmup: Duration,
}

impl Scenario {
    /// Describes likely mistakes: a headroom for priority-based flow control that is smaller than
    /// the bytes that arrive on the link after a pause was sent; and writes that boxes do not read
    /// ahead for, because no REQ tells them of the connections.
    pub fn warnings(&self) -> Vec<String> {
        let mut warnings = crate::pfc::short_headrooms(self);
        let reads_ahead = |station: &StationPlan| match &station.kind {
            StationKind::Box(config) => {
                config.whole.as_ref().is_some_and(|whole| whole.read_ahead.is_some())
            }
            _ => false,
        };
        if self.stations.iter().any(reads_ahead) {
            let is_unseen = |flow: &&Flow| {
                matches!(flow.test, Test::Storage { .. })
                    && flow.op == Op::Write
                    && flow.connect == Connect::OutOfBand
            };
            warnings.extend(self.flows.iter().filter(is_unseen).map(|flow| {
                format!(
                    "{}: boxes read ahead only for connections that they saw begin: add connect = \
                     \"cm\"",
                    flow.name
                )
            }));
        }
        warnings
    }
}

/// A station: its name and kind.
#[derive(Clone, Debug)]
pub struct StationPlan {
    /// Name in results.
    pub name: String,
    /// Its kind.
    pub kind: StationKind,
}

/// Kind of a station.
#[derive(Clone, Debug)]
pub enum StationKind {
    /// A host with one port: side 0.
    Host(NicProfile),
    /// A box; side 0 is the LAN, the paths of the WAN are the sides from 1 on.
    Box(Box<longhaul_wan_box::Config>),
    /// A switch.
    Switch(longhaul_switch::SwitchConfig),
}

/// A cable between two ends, each a station and a side.
#[derive(Clone, Debug)]
pub struct Cable {
    /// The two ends.
    pub ends: [(usize, usize); 2],
    /// Its wire in both directions. Losses occur in both, unless `loss_toward_second_only`.
    pub wire: LinkConfig,
    /// Only frames from the first end may be lost.
    pub loss_toward_second_only: bool,
}

impl Cable {
    /// A cable of a few metres at `rate`, whose queue never overflows.
    pub fn short(ends: [(usize, usize); 2], rate: BitRate) -> Self {
        Cable::long(ends, rate, Duration::from_ns(25))
    }

    /// A fibre at `rate` with one-way `delay`.
    pub fn long(ends: [(usize, usize); 2], rate: BitRate, delay: Duration) -> Self {
        // Stations ask for room, so the queue holds only granted frames.
        let wire = LinkConfig { delay, rate: Some(rate), ..LinkConfig::default() };
        Cable { ends, wire, loss_toward_second_only: false }
    }
}

/// A pair of programs, one at each of two hosts, and their QPs.
#[derive(Clone, Debug)]
pub struct Flow {
    /// Name in results.
    pub name: String,
    /// The requester's host.
    pub from: usize,
    /// The responder's host.
    pub to: usize,
    /// The requester's operation.
    pub op: Op,
    /// Bytes of each message: 1 to 2^31; 8 for atomics.
    pub message_bytes: u32,
    /// Transport service of its QPs.
    pub transport: Transport,
    /// DSCP of its packets, and of their acknowledgements: 0 to 63. Switches with flow control
    /// have [`Flow::ROCE_DSCP`] in their lossless priority.
    pub dscp: u8,
    /// How its programs learn of completions.
    pub events: Events,
    /// QPs.
    pub qps: u32,
    /// Path MTU.
    pub mtu: Mtu,
    /// The requester's test.
    pub test: Test,
    /// Start time.
    pub starts_at: Duration,
    /// How its QPs are connected.
    pub connect: Connect,
}

impl Flow {
    /// DSCP of RoCE data and ACKs, as usual in RoCE networks: priority 3.
    pub const ROCE_DSCP: u8 = 26;
}

/// Transport service of a flow's QPs.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Transport {
    /// Reliable connection.
    #[default]
    Rc,
    /// Unreliable connection: nothing is acknowledged or retransmitted, and a message that loses a
    /// packet, or finds no receive, is lost.
    Uc,
}

/// How the programs of a bandwidth test learn of completions.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Events {
    /// They poll, each in one thread that never sleeps.
    #[default]
    Off,
    /// Threads sleep until any completion raises an event: one for each QP, or one for all QPs of
    /// the responder's shared receive queue.
    All,
    /// The same, but the responder's threads sleep until the last message of a posted list.
    Solicited,
}

/// How QPs are connected.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Connect {
    /// Beforehand, by programs that tell each other everything elsewhere: in no time, and without a
    /// packet.
    #[default]
    OutOfBand,
    /// By the RDMA connection manager, all together from [`Flow::starts_at`] on. Traffic begins
    /// when the last is connected; at its end they are disconnected.
    ConnectionManager {
        /// The responder's program is there. Without it the flow fails.
        listens: bool,
    },
}

/// What a flow's programs do: perftest's two kinds of test, storage, and live migration.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Test {
    /// As many messages in flight as the queues hold.
    Bandwidth {
        /// Send work requests posted and not completed, of each QP.
        tx_depth: u32,
        /// Receives that the responder of a SEND keeps posted, of each QP.
        rx_depth: u32,
        /// Messages posted together.
        post_list: u32,
        /// Interval of signaled messages. `None`: perftest's default, [`perftest_cq_mod`].
        cq_mod: Option<u32>,
        /// End condition.
        until: Until,
    },
    /// One message at a time.
    Latency {
        /// Number of messages.
        iterations: u64,
    },
    /// NVMe over Fabrics: READs and WRITEs are commands of I/O queues.
    Storage {
        /// Outstanding commands of each queue.
        depth: u32,
        /// End condition; messages are commands.
        until: Until,
        /// The target.
        storage: Storage,
    },
    /// Live migration of a guest, whose disk and memory are WRITEs of one QP.
    Migration {
        /// WRITEs posted and not completed.
        depth: u32,
        /// Time after which it is cancelled.
        timeout: Duration,
        /// The guest.
        migration: Migration,
    },
}

impl Test {
    /// The end condition.
    pub fn until(&self) -> Until {
        match *self {
            Test::Bandwidth { until, .. } | Test::Storage { until, .. } => until,
            Test::Latency { iterations } => Until::Iterations(iterations),
            Test::Migration { timeout, .. } => Until::Elapsed(timeout),
        }
    }
}

/// End condition of a test.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Until {
    /// After this number of messages of each QP.
    Iterations(u64),
    /// After this time.
    Elapsed(Duration),
}

impl Default for Test {
    /// perftest's bandwidth test: tx-depth 128, rx-depth 512, 1000 messages.
    fn default() -> Self {
        Test::Bandwidth {
            tx_depth: 128,
            rx_depth: 512,
            post_list: 1,
            cq_mod: None,
            until: Until::Iterations(1000),
        }
    }
}

/// perftest's completion moderation: every 100th message is signaled (at least one per depth of the
/// send queue), every message above 8 KiB, and one per posted list.
///
/// Source: perftest 4.5, `force_dependecies` in its parameters' code.
pub fn perftest_cq_mod(message_bytes: u32, tx_depth: u32, post_list: u32) -> u32 {
    if post_list > 1 {
        return post_list;
    }
    if message_bytes > 8192 { 1 } else { tx_depth.clamp(1, 100) }
}
