//! What is simulated: stations, cables, and the programs that run.

use crate::host::Op;
use crate::profile::NicProfile;
use longhaul_link::LinkConfig;
use longhaul_rnic::Mtu;
use longhaul_units::{BitRate, Duration};

/// A network and what happens in it.
#[derive(Clone, Debug, Default)]
pub struct Scenario {
    /// Seeds all chance.
    pub seed: u64,
    /// What stands in the network. Cables and flows name these by their place here.
    pub stations: Vec<StationPlan>,
    /// What joins them.
    pub cables: Vec<Cable>,
    /// What programs do.
    pub flows: Vec<Flow>,
    /// Packets that are handled as one event at most, where nothing can tell the difference: 1
    /// handles each by itself, up to 1024. Trains run between two hosts on a cable without marks,
    /// gaps and recording.
    pub train_packets_max: u32,
    /// Virtual time after which the run ends whatever is not done.
    pub time_max: Option<Duration>,
}

impl Scenario {
    /// What can be simulated and is hardly meant, in words: a headroom for priority-based flow
    /// control that is smaller than what comes in on the link after a pause was asked for.
    pub fn warnings(&self) -> Vec<String> {
        crate::pfc::short_headrooms(self)
    }
}

/// A station: its name, and what it is.
#[derive(Clone, Debug)]
pub struct StationPlan {
    /// What results call it.
    pub name: String,
    /// What it is.
    pub kind: StationKind,
}

/// What a station is.
#[derive(Clone, Debug)]
pub enum StationKind {
    /// A host with one port: side 0.
    Host(NicProfile),
    /// A box; side 0 is the LAN, each path of the WAN has a side from 1 on.
    Box(Box<longhaul_wan_box::Config>),
    /// A switch.
    Switch(longhaul_switch::SwitchConfig),
}

/// A cable between two sides, each a station and the number of its side.
#[derive(Clone, Debug)]
pub struct Cable {
    /// The two ends.
    pub ends: [(usize, usize); 2],
    /// What it is like in both directions. Loss is in both, unless `loss_toward_second_only`.
    pub wire: LinkConfig,
    /// What the first end sends may be lost, what the second sends arrives.
    pub loss_toward_second_only: bool,
}

impl Cable {
    /// A few metres at `rate`, with a queue that nothing overflows.
    pub fn short(ends: [(usize, usize); 2], rate: BitRate) -> Self {
        Cable::long(ends, rate, Duration::from_ns(25))
    }

    /// A fibre at `rate` that takes `delay`.
    pub fn long(ends: [(usize, usize); 2], rate: BitRate, delay: Duration) -> Self {
        // Stations ask for room: the queue has to take only what they were granted.
        let wire = LinkConfig { delay, rate: Some(rate), ..LinkConfig::default() };
        Cable { ends, wire, loss_toward_second_only: false }
    }
}

/// A pair of programs, one at each of two hosts, and their QPs.
#[derive(Clone, Debug)]
pub struct Flow {
    /// What results call it.
    pub name: String,
    /// The requester's host.
    pub from: usize,
    /// The responder's host.
    pub to: usize,
    /// What the requester does.
    pub op: Op,
    /// Bytes of each message: 1 to 2^31; 8 for atomics.
    pub message_bytes: u32,
    /// QPs.
    pub qps: u32,
    /// Path MTU.
    pub mtu: Mtu,
    /// How the requester goes about it.
    pub test: Test,
    /// When it begins.
    pub starts_at: Duration,
    /// How its QPs get connected.
    pub connect: Connect,
}

/// How QPs get connected.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Connect {
    /// Beforehand, by programs that tell each other everything elsewhere: in no time, and without a
    /// packet.
    #[default]
    OutOfBand,
    /// By the RDMA connection manager, all at once from [`Flow::starts_at`] on. Traffic begins when
    /// the last is connected; when it is over, they are disconnected.
    ConnectionManager {
        /// The responder's program is there. Without it the flow fails.
        listens: bool,
    },
}

/// perftest's two kinds of test.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Test {
    /// As many messages under way as the queues take.
    Bandwidth {
        /// Send work requests posted and not completed, of each QP.
        tx_depth: u32,
        /// Receives that the responder of a SEND keeps posted, of each QP.
        rx_depth: u32,
        /// Messages posted together.
        post_list: u32,
        /// Each so many-th message is signaled. `None`: as perftest has it, [`perftest_cq_mod`].
        cq_mod: Option<u32>,
        /// When it is over.
        until: Until,
    },
    /// One message at a time.
    Latency {
        /// How many.
        iterations: u64,
    },
}

/// When a bandwidth test is over.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Until {
    /// After so many messages of each QP.
    Iterations(u64),
    /// After so much time.
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

/// perftest's moderation of completions: each 100th message is signaled, or each one above 8 KiB,
/// never more seldom than the send queue is deep, and once for each list.
///
/// Source: perftest 4.5, `force_dependecies` in its parameters' code.
pub fn perftest_cq_mod(message_bytes: u32, tx_depth: u32, post_list: u32) -> u32 {
    if post_list > 1 {
        return post_list;
    }
    if message_bytes > 8192 { 1 } else { tx_depth.clamp(1, 100) }
}
