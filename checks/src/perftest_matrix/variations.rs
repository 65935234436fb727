//! The options tested.

use super::{By, Case, Measure, Transport, Verb};

/// Message sizes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sizes {
    /// One size; for datagrams at most the MTU, for atomics always 8 bytes.
    One(u64),
    /// All powers of two, `-a`.
    All,
}

/// Options, and the expected outcome.
pub struct Variation {
    /// The options as typed.
    pub options: &'static str,
    /// Message sizes.
    pub sizes: Sizes,
    /// `-n`.
    pub iterations: u64,
    /// Queue pairs, each with its iterations.
    pub queue_pairs: u64,
    /// Whether `-D` limits the run by time instead of iterations.
    pub for_a_time: bool,
    /// `-m`, if it is among the options.
    pub mtu: Option<u32>,
    /// Programs, transports and connection methods to test it with.
    pub applies: fn(&Case) -> bool,
}

/// No options. Iterations are a multiple of the length of lists (16), and fewer than a program's
/// initial receives (512): an unreliable transport may lose messages without a receive.
const PLAIN: Variation = Variation {
    options: "",
    sizes: Sizes::One(2048),
    iterations: 320,
    queue_pairs: 1,
    for_a_time: false,
    mtu: None,
    applies: |_| true,
};

const fn plain(options: &'static str) -> Variation {
    Variation { options, ..PLAIN }
}

/// A variation of `-m`, with three packets per message if the transport permits several.
const fn mtu(options: &'static str, mtu: u32) -> Variation {
    Variation { sizes: Sizes::One(2 * mtu as u64 + 100), mtu: Some(mtu), ..plain(options) }
}

const fn only(options: &'static str, applies: fn(&Case) -> bool) -> Variation {
    Variation { applies, ..plain(options) }
}

const fn of_queue_pairs(variation: Variation, queue_pairs: u64) -> Variation {
    Variation { queue_pairs, ..variation }
}

fn bandwidth(case: &Case) -> bool {
    case.measure == Measure::Bandwidth
}

fn bandwidth_by_tcp(case: &Case) -> bool {
    bandwidth(case) && by_tcp(case)
}

fn bandwidth_of_rc(case: &Case) -> bool {
    bandwidth(case) && case.transport == Transport::Rc
}

fn latency(case: &Case) -> bool {
    case.measure == Measure::Latency
}

fn send(case: &Case) -> bool {
    case.verb == Verb::Send
}

fn send_bandwidth(case: &Case) -> bool {
    send(case) && bandwidth(case)
}

fn write_bandwidth_of_rc_by_tcp(case: &Case) -> bool {
    case.verb == Verb::Write && bandwidth_of_rc(case) && case.by == By::Tcp
}

fn by_tcp(case: &Case) -> bool {
    case.by == By::Tcp
}

fn fetches(case: &Case) -> bool {
    matches!(case.verb, Verb::Read | Verb::Atomic) && case.transport == Transport::Rc
}

/// All variations: first those for every program, then those for some.
pub static VARIATIONS: &[Variation] = &[
    PLAIN,
    // perftest measures its clock's rate for each size: with RDMA-CM bandwidth suffices.
    Variation {
        sizes: Sizes::All,
        iterations: 16,
        ..only("-a", |case| by_tcp(case) || bandwidth(case))
    },
    plain("-b"),
    of_queue_pairs(Variation { iterations: 32, ..plain("-q 16") }, 16),
    plain("-l 16"),
    plain("-e"),
    Variation { sizes: Sizes::One(64), ..plain("-I 64") },
    plain("--use-srq"),
    mtu("-m 256", 256),
    mtu("-m 512", 512),
    mtu("-m 1024", 1024),
    mtu("-m 2048", 2048),
    mtu("-m 4096", 4096),
    Variation { for_a_time: true, ..plain("-D 1") },
    // Connection methods.
    only("-z", by_tcp),
    only("-x 1", by_tcp),
    only("-T 104", |case| case.by == By::RdmaCm && case.verb != Verb::Read),
    only("--tclass=104", |case| by_tcp(case) && case.verb != Verb::Atomic),
    only("-S 3", |case| case.verb == Verb::Write),
    only("-u 10", bandwidth_of_rc),
    only("--retry_count=3", |case| bandwidth_of_rc(case) && case.by == By::RdmaCm),
    // Sizes and counts.
    Variation {
        sizes: Sizes::One(1),
        ..only("-s 1", |case| case.verb != Verb::Atomic && by_tcp(case))
    },
    Variation {
        sizes: Sizes::One(1 << 23),
        iterations: 8,
        ..only("-s 8388608", |case| {
            case.verb != Verb::Atomic && case.transport != Transport::Ud && by_tcp(case)
        })
    },
    only("-t 1", bandwidth_by_tcp),
    only("-t 1000", bandwidth_by_tcp),
    only("-Q 1", bandwidth_by_tcp),
    only("-N", bandwidth_by_tcp),
    only("-r 32", |case| send(case) && case.transport == Transport::Rc),
    only("-o 1", fetches),
    only("-A CMP_AND_SWAP", |case| case.verb == Verb::Atomic && case.transport == Transport::Rc),
    // Combinations.
    only("-b --report-both", bandwidth),
    of_queue_pairs(Variation { iterations: 32, ..only("-b -q 4 -l 16", bandwidth) }, 4),
    of_queue_pairs(Variation { iterations: 32, ..only("-q 4 --mr_per_qp", bandwidth) }, 4),
    of_queue_pairs(Variation { iterations: 32, ..only("-q 4 -e", send_bandwidth) }, 4),
    // perftest's shared queue is as long as one queue pair's iterations: without RNR NAKs that
    // loses messages.
    of_queue_pairs(
        Variation {
            iterations: 16,
            ..only("-q 16 --use-srq", |case| {
                send_bandwidth(case) && case.transport == Transport::Rc
            })
        },
        16,
    ),
    only("-b --use-srq", send_bandwidth),
    only("-e --use-srq", send),
    only("-e -b", |case| bandwidth(case) && case.verb != Verb::Write),
    only("--recv_post_list=16", send_bandwidth),
    Variation { sizes: Sizes::One(64), ..only("-I 64 -l 16 -b", send_bandwidth) },
    only("-X 1 -e", send),
    only("-g", |case| send(case) && case.transport == Transport::Ud),
    only("-g -M 0:0:0:0:0:0:0:0:0:0:255:255:239:1:2:3", |case| {
        send(case) && case.transport == Transport::Ud && by_tcp(case)
    }),
    only("--inline_recv=64", send),
    // Without `-Q 1` this version waits for completions that it has not requested.
    only("-Q 1 --perform_warm_up", |case| bandwidth(case) && case.verb != Verb::Send),
    // With `-R` this version does not reverse who connects to whom.
    only("--reversed", |case| bandwidth_of_rc(case) && by_tcp(case)),
    only("-H", |case| latency(case) && case.transport == Transport::Rc && by_tcp(case)),
    Variation {
        for_a_time: true,
        ..only("-D 1 --cpu_util", |case| send_bandwidth(case) && by_tcp(case))
    },
    only("--rate_limit=1 --rate_limit_type=SW", write_bandwidth_of_rc_by_tcp),
    only("--rate_limit=10 --rate_limit_type=HW", |case| {
        case.verb == Verb::Write && bandwidth_of_rc(case)
    }),
    only("--use_old_post_send", write_bandwidth_of_rc_by_tcp),
    only("--out_json", write_bandwidth_of_rc_by_tcp),
    // Options that this device, or this version of perftest, lacks.
    only("--rate_limit=1 --rate_limit_type=PP", write_bandwidth_of_rc_by_tcp),
    only("--write_with_imm", write_bandwidth_of_rc_by_tcp),
    only("--odp", write_bandwidth_of_rc_by_tcp),
    only("-O", write_bandwidth_of_rc_by_tcp),
    only("-c XRC", write_bandwidth_of_rc_by_tcp),
    only("-c DC", write_bandwidth_of_rc_by_tcp),
    only("-c SRD", write_bandwidth_of_rc_by_tcp),
];
